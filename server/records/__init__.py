"""The server's local records, without content: statistics and traces."""
