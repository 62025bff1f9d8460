"""The built-in ways to split a data set over clients, one module each."""
