"""Downloading and unpacking official files."""
