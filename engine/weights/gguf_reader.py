"""The `gguf` library's reader for untrusted files, and the parts of a split model.

The library trusts its file. Here nothing is read past the end, sizes are bounded, and every error is one sentence.
Import this only to read a GGUF file: the library takes a tenth of a second.
"""

import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGUFValueType

from caesura.engine.tokens.tokenizer_file import MAX_TOKENS
from caesura.engine.weights.stored import WeightsError
from caesura.model_store.reading import reason

MAX_METADATA = 32 << 20  # bytes; Qwen2.5's are 6 MB
MAX_ENTRIES = 1 << 16  # metadata keys, or tensors
PART = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")


class Reader(gguf.GGUFReader):
    """Reads an array at once: the library makes an object of every element, which takes seconds for Qwen's vocabulary.
    Raises at the end of the file, where the library returns too little and may loop for ever."""

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        if offset + np.dtype(dtype).itemsize * int(count) > len(self.data):
            raise ValueError("it ends too early")
        return super()._get(offset, dtype, count, override_order)

    def _build_fields(self, offs: int, count: int) -> Any:
        return super()._build_fields(offs, _bounded(count))

    def _build_tensor_info(self, offs: int, count: int) -> Any:
        return super()._build_tensor_info(offs, _bounded(count))

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if orig_offs > MAX_METADATA:
            raise ValueError(f"its metadata are larger than {MAX_METADATA >> 20} MiB")
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        kind, count = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
        if count[0] > MAX_TOKENS:
            raise ValueError(f"an array of {count[0]} elements")
        of, start = GGUFValueType(kind[0]), orig_offs + 12
        if of == GGUFValueType.STRING:
            values, end = self._strings(start, int(count[0]))
        elif of in self.gguf_scalar_to_np:
            values = [self._get(start, self.gguf_scalar_to_np[of], int(count[0]))]
            end = start + values[0].nbytes
        else:
            raise ValueError("an array of arrays")
        return end - orig_offs, [kind, count, *values], range(2, 2 + len(values)), [GGUFValueType.ARRAY, of]

    def _strings(self, at: int, count: int) -> tuple[list[Any], int]:
        """The bytes of `count` strings from `at` on, and their end."""
        found, raw, length = list[Any](), self.data.view(np.ndarray), struct.Struct("<Q").unpack_from
        view, most = self.data.data, min(len(self.data), MAX_METADATA)
        for _ in range(count):
            start = at + 8
            at = start + length(view, at)[0]
            if at > most:
                raise ValueError("a string is longer than the metadata")
            found.append(raw[start:at])
        return found, at


def _bounded(count: int) -> int:
    if count > MAX_ENTRIES:
        raise ValueError(f"it claims {count} entries")
    return int(count)


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
    field = part.fields.get(key)
    if field is None:
        return default
    try:
        found = field.contents()
    except Exception as error:
        raise damaged(path, error) from error
    return float(str(np.float32(found))) if isinstance(found, float) else found


def _count(part: Reader) -> int:
    field = part.fields.get("split.count")
    value = field.contents() if field is not None else 0
    return value if isinstance(value, int) else 0


def _open(path: Path) -> Reader:
    try:
        with np.errstate(all="ignore"):
            reader = Reader(path)
        if reader.byte_order == "S":
            raise ValueError("it is big-endian")
    except Exception as error:
        raise damaged(path, error) from error
    return reader


def damaged(path: Path, error: Exception) -> WeightsError:
    return WeightsError(f"{path} is no GGUF file, damaged or incomplete ({reason(error)}); download it again.")
