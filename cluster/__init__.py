"""A team on one engine: a door with our own keys and budgets, in front of replicas of the engine on Ray Serve.

Nothing else imports this package but the command `caesura team`.
"""
