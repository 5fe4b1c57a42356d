"""How a server asks an engine for fills: the shared one of this machine, or a paired one."""
