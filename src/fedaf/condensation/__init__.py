"""Condensing a client's data into a few synthetic images per class: the formulas and the loop that applies them."""
