"""Shared by all rooms: the registry, tables of options, names and files."""
