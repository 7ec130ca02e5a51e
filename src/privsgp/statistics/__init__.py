"""Sums over the sites' records, released once with noise, and what can be read from them."""
