"""A reader of GGUF files that anybody may have made, and the parts of a split model.

Nothing is read past the end, sizes are bounded, and every error is one sentence. Texts stay bytes until they are asked
for: a vocabulary has 300,000 of them.
"""

import math
import mmap
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from caesura.engine.tokens.tokenizer_file import MAX_TOKENS
from caesura.engine.weights.mapped import Entry, unshaped
from caesura.engine.weights.stored import WeightsError
from caesura.model_store.reading import opened, reason

MAX_METADATA = 32 << 20  # bytes; Qwen2.5's are 6 MB
MAX_ENTRIES = 1 << 16  # metadata keys, or tensors
MAX_DIMENSIONS = 4
ALIGNMENT = 32  # of tensors in a file that says nothing else, in bytes
VERSIONS = (2, 3)
NUMBERS = ("B", "b", "H", "h", "I", "i", "f", "?", None, None, "Q", "q", "d")  # by type; the two are STRING and ARRAY
STRING, ARRAY = 8, 9
PART = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")


class Type(NamedTuple):
    """A type of tensors: columns and bytes of a block."""

    name: str
    columns: int
    nbytes: int


TYPES = {  # as GGUF numbers them
    **{0: Type("F32", 1, 4), 1: Type("F16", 1, 2), 30: Type("BF16", 1, 2), 28: Type("F64", 1, 8)},
    **{24: Type("I8", 1, 1), 25: Type("I16", 1, 2), 26: Type("I32", 1, 4), 27: Type("I64", 1, 8)},
    **{2: Type("Q4_0", 32, 18), 3: Type("Q4_1", 32, 20), 6: Type("Q5_0", 32, 22), 7: Type("Q5_1", 32, 24)},
    **{8: Type("Q8_0", 32, 34), 9: Type("Q8_1", 32, 40), 20: Type("IQ4_NL", 32, 18), 39: Type("MXFP4", 32, 17)},
    **{10: Type("Q2_K", 256, 84), 11: Type("Q3_K", 256, 110), 12: Type("Q4_K", 256, 144), 13: Type("Q5_K", 256, 176)},
    **{14: Type("Q6_K", 256, 210), 15: Type("Q8_K", 256, 292), 23: Type("IQ4_XS", 256, 136)},
    **{16: Type("IQ2_XXS", 256, 66), 17: Type("IQ2_XS", 256, 74), 22: Type("IQ2_S", 256, 82)},
    **{18: Type("IQ3_XXS", 256, 98), 21: Type("IQ3_S", 256, 110), 19: Type("IQ1_S", 256, 50)},
    **{29: Type("IQ1_M", 256, 56), 34: Type("TQ1_0", 256, 54), 35: Type("TQ2_0", 256, 66)},
    **{40: Type("NVFP4", 64, 36), 41: Type("Q1_0", 128, 18)},
}
NAMED = {kind.name: kind for kind in TYPES.values()}


class Reader:
    """The metadata and the tensors of a file; dtypes are the names in TYPES. Raises ValueError, struct.error or
    UnusableModel."""

    def __init__(self, path: Path) -> None:
        with opened(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            self._data, self._at = data, 0
            if self._bytes(4) != b"GGUF":
                raise ValueError("it begins otherwise")
            version = self._number("I")
            if version & 0xFFFF == 0:
                raise ValueError("it is big-endian")
            if version not in VERSIONS:
                raise ValueError(f"it has the version {version}")
            tensors, keys = (self._bounded(MAX_ENTRIES) for _ in range(2))
            self.fields = dict[str, Any]()
            for _ in range(keys):
                key = self._text().decode()
                if key in self.fields:
                    raise ValueError("a key stands twice in it")
                self.fields[key] = self._value(self._number("I"))
            told = [self._tensor() for _ in range(tensors)]
            alignment = self.fields.get("general.alignment", ALIGNMENT)
            if type(alignment) is not int or alignment < 1 or alignment & alignment - 1:
                raise ValueError("it has an impossible alignment")
            start = -(-self._at // alignment) * alignment
            self.tensors = [Entry(name, path, shape, kind, start + at, size) for name, shape, kind, at, size in told]
            if len({entry.name for entry in self.tensors}) < len(told):
                raise ValueError("a tensor stands twice in it")
            if any(entry.begin + entry.nbytes > len(data) for entry in self.tensors):
                raise ValueError("it ends too early")
            del self._data

    def _bytes(self, count: int) -> bytes:
        first = self._at
        if count > len(self._data) - first:
            raise ValueError("it ends too early")
        if first + count > MAX_METADATA:
            raise ValueError(f"its metadata are larger than {MAX_METADATA >> 20} MiB")
        self._at += count
        return self._data[first : self._at]

    def _number(self, kind: str) -> Any:
        return struct.unpack(f"<{kind}", self._bytes(struct.calcsize(f"<{kind}")))[0]

    def _bounded(self, most: int) -> int:
        count: int = self._number("Q")
        if count > most:
            raise ValueError(f"it claims {count} entries")
        return count

    def _text(self) -> bytes:
        return self._bytes(self._number("Q"))

    def _value(self, kind: int) -> Any:
        """A number, a text as bytes, or a list of either."""
        if kind == ARRAY:
            kind, count = self._number("I"), self._bounded(MAX_TOKENS)
            if kind == STRING:
                return self._texts(count)
            form = f"{count}{self._form(kind)}"
            return list(struct.unpack(f"<{form}", self._bytes(struct.calcsize(f"<{form}"))))
        return self._text() if kind == STRING else self._number(self._form(kind))

    def _form(self, kind: int) -> str:
        found = NUMBERS[kind] if kind < len(NUMBERS) else None
        if found is None:
            raise ValueError(f"a value of the type {kind}")
        return found

    def _texts(self, count: int) -> list[bytes]:
        """As `_text`, in a loop of its own: a vocabulary has a quarter of a million."""
        data, at, found, length = self._data, self._at, list[bytes](), struct.Struct("<Q").unpack_from
        most = min(len(data), MAX_METADATA)
        for _ in range(count):
            start = at + 8
            at = start + length(data, at)[0]
            if at > most:
                raise ValueError("a text is longer than the metadata")
            found.append(data[start:at])
        self._at = at
        return found

    def _tensor(self) -> tuple[str, tuple[int, ...], str, int, int]:
        """Name, shape, type, place after the metadata, and size in bytes."""
        name, count = self._text().decode(), self._number("I")
        if not 0 < count <= MAX_DIMENSIONS:
            raise ValueError(f"a tensor of {count} dimensions")
        shape = tuple(reversed([self._number("Q") for _ in range(count)]))
        if unshaped(shape):
            raise ValueError("a tensor of an impossible shape")
        number, at = self._number("I"), self._number("Q")
        if number not in TYPES:
            raise ValueError(f"a tensor of the type {number}")
        kind = TYPES[number]
        if shape[-1] % kind.columns:
            raise ValueError(f"a tensor of {kind.name} with broken blocks")
        return name, shape, kind.name, at, math.prod(shape) // kind.columns * kind.nbytes


def parts(path: Path) -> Sequence[Reader]:
    """The file, or all files of a split one, the one with the metadata first."""
    first = _open(path)
    count = _count(first)
    if count <= 1:
        return [first]
    match = PART.fullmatch(path.name)
    if match is None or int(match[2]) != count:
        raise WeightsError(
            f"{path} is one of {count} parts and is not called NAME-00001-of-{count:05}.gguf; give the parts their"
            " names again."
        )
    files = [path.with_name(f"{match[1]}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise WeightsError(f"{missing} is missing, one of {count} parts of a model; download it into the same folder.")
    parts = [_open(file) for file in files]
    for file, part in zip(files, parts, strict=True):
        if _count(part) != count:
            raise WeightsError(f"{file} is not a part of the model next to it; download it again.")
    return parts


def value(path: Path, part: Reader, key: str, default: Any = None) -> Any:
    """A value of the metadata. A float is the shortest with the same float32: 1e-06, not 9.99999997e-07. Raises
    WeightsError."""
    found = part.fields.get(key, default)
    try:
        if isinstance(found, bytes):
            return found.decode()
        if isinstance(found, list):
            return [one.decode() if isinstance(one, bytes) else one for one in found]
    except UnicodeDecodeError as error:
        raise damaged(path, error) from error
    return float(str(np.float32(found))) if isinstance(found, float) else found


def _count(part: Reader) -> int:
    value = part.fields.get("split.count", 0)
    return value if isinstance(value, int) else 0


def _open(path: Path) -> Reader:
    try:
        return Reader(path)
    except Exception as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> WeightsError:
    return WeightsError(f"{path} is no GGUF file, damaged or incomplete ({reason(error)}); download it again.")
