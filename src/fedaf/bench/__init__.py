"""Benchmarks against a plain PyTorch loop."""
