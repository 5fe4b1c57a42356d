"""The process that editors talk to, without torch: its sockets, who may use them, which jobs are owed an answer, and
the worker process."""
