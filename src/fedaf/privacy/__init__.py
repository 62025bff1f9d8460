"""What shared data reveal about private data."""
