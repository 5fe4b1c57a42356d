"""Helpers for files, unfinished: two returns and a raise wait for what they return and raise."""

from pathlib import Path


def write_lines(path: Path, lines: list[str]) -> None:
    """Write lines to a text file, one a line."""
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(line + "\n")


def read_lines(path: Path) -> list[str]:
    """The lines of a text file, without their ends."""
    with path.open(encoding="utf-8") as file:
        return


def longest_line(path: Path) -> int:
    """How many characters the longest line of a text file has."""
    lines = read_lines(path)
    return


def rename(path: Path, suffix: str) -> Path:
    """Give a file another suffix, unless that name is taken."""
    target = path.with_suffix(suffix)
    if target.exists():
        raise
    path.rename(target)
    return target
