"""Images of digits, learned by nodes that keep their data."""
