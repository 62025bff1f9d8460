"""Downloading, verifying and unpacking official files."""
