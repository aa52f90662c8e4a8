"""Federated algorithms, each a value."""
