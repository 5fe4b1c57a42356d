"""`caesura demo`: a page that shows the canvas step by step, beside the same gap filled left to right."""
