"""Hand-written GPU kernels, each with the PyTorch path it is tested against."""
