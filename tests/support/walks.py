"""Random texts that an automaton accepts."""

from functools import lru_cache
from random import Random

from caesura.automata.dfa import Dfa


@lru_cache
def distances(dfa: Dfa) -> list[int]:
    """Of each state, the bytes of the shortest way to acceptance."""
    out = [0 if state in dfa.accepting else 10**6 for state in range(len(dfa.rows))]
    changed = True
    while changed:
        changed = False
        for state in reversed(range(len(dfa.rows))):
            best = min([out[state], *(1 + out[target] for _, target in dfa.rows[state])])
            changed |= best < out[state]
            out[state] = best
    return out


def walks(dfa: Dfa, random: Random, count: int, most: int = 40) -> list[str]:
    """`count` accepted texts; beyond `most` bytes each takes the shortest way out. None where nothing is accepted."""
    if dfa.empty:
        return []
    ends = distances(dfa)
    texts = []
    for _ in range(count):
        state, raw = 0, bytearray()
        stop = random.randrange(most)
        while state not in dfa.accepting or (len(raw) < stop and dfa.rows[state]):
            row = dfa.rows[state]
            if len(raw) >= stop:
                row = tuple(edge for edge in row if ends[edge[1]] < ends[state])
            mask, state = random.choice(row)
            raw.append(random.choice([byte for byte in range(256) if mask >> byte & 1]))
        texts.append(raw.decode())
    return texts
