"""Weights that privsgp reads; there is no code."""
