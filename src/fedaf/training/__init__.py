"""Training and evaluation of a model on one device."""
