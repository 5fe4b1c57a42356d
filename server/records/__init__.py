"""What the server writes down, without content: statistics and traces."""
