"""What a job shows around its hole: the buffer, the project's other files, and what stays private."""
