"""A node: its own data, device, budget and constraint set, from a file that never leaves it."""

from fedbudget.flower.apps import client as app

__all__ = ["app"]
