"""`caesura demo`: a page that shows the canvas step by step, next to the same gap filled left to right."""
