"""The paper's networks, and what any network must offer: fresh weights from a key, features before its classifier."""
