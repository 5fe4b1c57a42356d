"""What quality.py is made of: cases in, rows of completions, their scores, a report of them."""
