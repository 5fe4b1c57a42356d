"""Regular languages: finite automata, and the regular expressions of ECMA-262 that become one."""
