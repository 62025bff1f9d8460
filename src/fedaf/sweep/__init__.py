"""Grids of runs: what runs their cells, workers, budgets, tables over seeds, and the search for settings."""
