"""The fit of a fill into its place: its end, its indentation, its syntax, and how much of it to show."""
