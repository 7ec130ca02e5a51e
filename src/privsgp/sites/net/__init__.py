"""gRPC between sites: the server, the client, the relay, TLS 1.3, and why a link fails."""
