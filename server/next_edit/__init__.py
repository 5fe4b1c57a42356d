"""Next edit: the places where the user's last edits most likely go on. Pure: no I/O, no clock, no model."""
