"""Helpers of the network tests."""
