"""Attacks on runs of a user's own configuration, and what they prove about each node's ε."""
