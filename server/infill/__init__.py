"""From a place in a text to the inserted text: the job, and what of its answer is inserted, where and how."""
