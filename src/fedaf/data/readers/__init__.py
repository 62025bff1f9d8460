"""Readers of published file formats: each finds its files and converts them to the stored form."""
