"""Transports: one protocol (`protocol.py`), and a file for each kind."""
