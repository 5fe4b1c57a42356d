"""How the processes of one machine, and of paired machines, find each other and prove who they are."""
