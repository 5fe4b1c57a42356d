"""The context of a hole: the document, the project's other files, and what stays private."""
