"""Reading, checking, converting and testing a model's files."""
