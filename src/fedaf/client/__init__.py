"""A client's side of a phase."""
