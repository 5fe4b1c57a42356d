"""Ghost text: a document's warm canvas, and what of it is shown."""
