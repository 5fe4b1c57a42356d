"""The arguments that several commands take, and the kinds of their values.

A kind checks the text of an argument and returns its value, or raises argparse.ArgumentTypeError.
"""

import argparse
import re
from collections.abc import Callable

from caesura.characters import PRINTABLE

LineColumn = tuple[int, int]  # line and column, from 1, the column in code points


def add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE")
    add_anyway(parser)


def add_anyway(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--anyway", action="store_true", help="also if FILE is hidden: by its name, or by a .caesuraignore above it"
    )


def add_certainty(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--least", type=probability, metavar="P", help="show no fill less likely than P, 0 to 1")
    parser.add_argument(
        "--strict", action="store_true", help="exit with 3 if no fill is likely (or as likely as --least)"
    )


def add_generation(parser: argparse.ArgumentParser, *, json: bool = True) -> None:
    if json:
        add_json(parser)
    add_model(parser)
    parser.add_argument("--method", metavar="M", help="how holes are filled, by name; default: the model's own")
    parser.add_argument(
        "--sampler", metavar="S", help="which slots a step of a canvas accepts, by name; default: its own"
    )
    parser.add_argument("--prompt-format", metavar="P", help="how the text is shown to the model; default: its own")
    parser.add_argument("--deadline-ms", type=milliseconds, default=10_000.0, metavar="N", help="default: %(default)g")


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default="default", metavar="NAME|PATH", help="default: coder where it is installed, else small"
    )
    parser.add_argument(
        "--draft", metavar="NAME|PATH", help="a diffusion model or a DFlash checkpoint that drafts for the other"
    )
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="default: %(default)s")


def add_json(parser: argparse.ArgumentParser, *, default: object = False) -> None:
    parser.add_argument("--json", action="store_true", default=default, help="one JSON document on stdout")


def position(text: str) -> LineColumn:
    line, _, column = text.partition(":")
    if not (line.isdecimal() and column.isdecimal() and int(line) and int(column)):
        raise argparse.ArgumentTypeError(f"{text!r} is not LINE:COL, both counted from 1")
    return int(line), int(column)


def offer(text: str) -> int | str:
    """The index of an edit, or its title."""
    return int(text) - 1 if text.isdecimal() else text


def milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 600_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of milliseconds from 1 to 600000")
    return value


def probability(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a probability from 0 to 1")
    return value


def port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, 0 to 65535")
    return int(text)


def key(text: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a key of 64 hexadecimal digits; `caesura pair` shows it")
    return text.lower()


def name(text: str) -> str:
    if not (re.fullmatch(r"[\w.-]{1,64}", text) and re.match(PRINTABLE, text)):  # some letters show nothing
        raise argparse.ArgumentTypeError(f"{text!r} is not a name of letters, digits, dots and dashes")
    return text


def repository(text: str) -> str:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not ORG/NAME or ORG/NAME@REV, as a hub calls its models")
    return text


def team_model(text: str) -> str:
    from caesura.ipc import pairing

    if not re.match(pairing.MODEL, text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a name or path of at most 256 ASCII characters")
    return text


def address(text: str) -> str:
    from caesura.ipc import pairing

    return _said(pairing.address, text)


def url(text: str) -> str:
    from caesura.client.backends import named

    return _said(named.address, text)


def own_address(text: str) -> str:
    from caesura.ipc import pairing

    return _said(pairing.own_address, text)


def _said(check: Callable[[str], str], text: str) -> str:
    """Run a check with its error as one of argparse, which shows no others."""
    try:
        return check(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def marker(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("a marker cannot be empty")
    return text
