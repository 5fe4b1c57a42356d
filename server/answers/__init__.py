"""How an answer of the engine is fitted into its place: its end, its indentation, its syntax, its worth."""
