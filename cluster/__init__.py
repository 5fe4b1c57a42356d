"""A team on one engine: a door with our own keys and budgets, and replicas of the engine behind it on Ray Serve.

Nothing else imports this package but the command `caesura team`.
"""
