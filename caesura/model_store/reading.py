"""Reads a model's small files, which anybody may have made: regular files only, and none above its limit.

The libraries that map weights get a file once `opened` has accepted it. Every sentence about a model is made here
printable. Imports no torch.
"""

import json
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from caesura import paths
from caesura.characters import shown

MAX_JSON = 4 << 20  # bytes of config.json and the like; a published one has less than 1 MB
MAX_LARGE = 64 << 20  # bytes of a tokenizer (Gemma's has 33 MB), or of the index of a checkpoint
MAX_NAME = 80  # characters of a name or a value in a sentence
MAX_REASON = 160  # characters of a library's error in a sentence
AGAIN = "install or download the model again"

Content = TypeVar("Content")


class UnusableModel(Exception):
    """A model or a file of one cannot be used; the message is a sentence for the user, whatever names it quotes."""

    def __init__(self, sentence: str) -> None:
        super().__init__(shown(sentence))


def opened(path: Path, most: int | None = None) -> BufferedReader:
    """A regular file of at most `most` bytes, or one that a link leads to, open for reading. Does not wait for a pipe.
    Raises UnusableModel."""
    try:
        file = open(path, "rb", opener=paths.unblocked)  # noqa: SIM115 (the caller closes it)
    except FileNotFoundError:
        raise UnusableModel(f"{path} is missing; {AGAIN}.") from None
    except OSError as error:
        raise UnusableModel(f"{path} cannot be read: {error.strerror}.") from error
    state = os.fstat(file.fileno())
    if not stat.S_ISREG(state.st_mode):
        file.close()
        raise UnusableModel(f"{path} is a pipe or a device, not a file; {AGAIN}.")
    if most is not None and state.st_size > most:
        file.close()
        raise too_large(path, most)
    return file


def too_large(path: Path, most: int) -> UnusableModel:
    return UnusableModel(f"{path} is larger than {most >> 20} MiB, the limit for such a file; {AGAIN}.")


def read(path: Path, most: int = MAX_JSON) -> bytes:
    """The content of a file of at most `most` bytes. Raises UnusableModel."""
    with opened(path, most) as file:
        try:
            data = file.read(most + 1)  # it may have grown
        except OSError as error:
            raise UnusableModel(f"{path} cannot be read: {error.strerror}.") from error
    if len(data) > most:
        raise too_large(path, most)
    return data


def decoded(path: Path, kind: type[Content], most: int = MAX_JSON) -> Content:
    """The content of a JSON file, as a type that msgspec can convert to. As in Transformers, numbers may be infinite,
    and the last of equal keys counts. Raises UnusableModel."""
    try:
        text = read(path, most).decode()
        found = json.loads(text)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()  # raises for half of a surrogate pair
        return msgspec.convert(found, kind, str_keys=True)
    except (ValueError, RecursionError) as error:
        raise UnusableModel(f"{path} is damaged ({reason(error)}); {AGAIN}.") from error


def fields(path: Path, most: int = MAX_JSON) -> dict[str, Any]:
    """The object in a JSON file. Raises UnusableModel."""
    return decoded(path, dict[str, Any], most)


def reason(error: BaseException) -> str:
    """An error of a library as part of a sentence."""
    return shown(" ".join(str(error).split()), MAX_REASON)


def short(name: object) -> str:
    """A name from a file as part of a sentence."""
    return shown(name, MAX_NAME)


def quoted(value: object) -> str:
    """A value from a file as part of a sentence, in quotes if it is a text."""
    return short(repr(value))
