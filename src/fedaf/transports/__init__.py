"""Ways to reach clients."""
