"""What every room needs: names, loading, files."""
