"""Private learning without a server."""

__version__ = "0.1.0"
