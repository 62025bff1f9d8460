"""Benchmarks of fedaf against plain PyTorch loops."""
