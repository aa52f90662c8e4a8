"""CAFL-L as a Flower app."""
