"""Training and testing a model on one device."""
