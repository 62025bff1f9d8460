"""The paper's networks, custom models, and their features and weights."""
