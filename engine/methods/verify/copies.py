"""What only copies the lines around a hole: the server would take such a fill back, so it must not win the search."""

from caesura.engine.methods.verify.search import Judge, never

LINES = 16  # of the text on each side that are compared


def copying(before: str, after: str) -> Judge:
    """A judge of fills between two texts. True for one at a line's end that ends with the next lines, or is the lines
    above."""
    rest, *below = after.split("\n", LINES)
    *above, begun = before.rsplit("\n", LINES)
    following, preceding = lines(below[:LINES]), lines(above[-LINES:])
    if rest.strip() or not (following or preceding):
        return never

    def judge(text: str) -> bool:
        first, *others = text.split("\n")
        made = lines([begun + first, *others])
        if not made or not any(character.isalnum() for character in made[-1]):
            return False
        tails = (made[at:] for at in range(len(made)))
        return any(tail == following[: len(tail)] for tail in tails) or made == preceding[-len(made) :]

    return judge


def lines(of: list[str]) -> list[str]:
    """Those that are not blank, without blanks at their ends."""
    return [line.rstrip() for line in of if line.strip()]
