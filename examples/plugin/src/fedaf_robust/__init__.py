"""A plugin of fedaf: a robust method and a small data set."""
