"""A client's side of a phase: check the request, do the work, keep state, reply."""
