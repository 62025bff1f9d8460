"""Readers of data sets in the forms they are published in: each finds its files, and converts them to the one form."""
