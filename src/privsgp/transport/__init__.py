"""Who hears whom: one protocol (`protocol.py`), and a file for each kind."""
