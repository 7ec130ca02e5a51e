"""Private learning without a server."""
