"""Ghost text: the warm canvases of each document, and the suggestions shown from them."""
