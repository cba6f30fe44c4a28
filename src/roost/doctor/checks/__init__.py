"""The checks."""
