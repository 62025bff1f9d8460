"""Run a federation over a real network, on Flower."""
