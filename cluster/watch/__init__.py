"""Show a team to its administrator: figures and `/health` for a scraper, and traces for a collector.

All of it is in the door's process, which is in the machine's own network, unlike the relay and Ray, and outlives both.
The figures and spans come from the frames of jobs. Nothing here has a user's name or key, a document, a path or text.
"""
