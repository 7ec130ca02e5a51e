"""Gradient tables: the last gradient of every sample of a node."""
