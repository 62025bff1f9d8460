"""The paper's networks and users' own, and what each must offer: fresh weights from a key, features, a classifier."""
