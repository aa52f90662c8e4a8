"""The server: fedbudget's rounds over Flower's Grid."""

from fedbudget.flower.apps import server as app

__all__ = ["app"]
