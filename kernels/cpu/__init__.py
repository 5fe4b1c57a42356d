"""Products with 4-bit and 8-bit weights as stored, in C, over numpy arrays; `int8.py` has them in torch.

A matrix keeps its codes, scales and minima; rows of activations are rounded to 8 bits, one scale a row. Sums over a
group of 32 columns are integers, and every variant adds them up in the same order: a row's result does not depend on
the rows next to it, and is the same on AVX2, AVX512 and AMX.

Bytes: a matrix once a call, 4.5 to 5 bits a 4-bit weight, 8.5 an 8-bit one; with up to 4 rows that is the cost.
Operations: rows * N * K products, 64 an AVX512-VNNI instruction, and two more instructions for each 512.

If the package was built without a compiler, there is no library: torch computes if it is installed (`int8.py`), else a
model is refused with a sentence when it is loaded. CAESURA_CPU names one of `variants()`, or "torch".
"""

import ctypes
import hashlib
import logging
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

GROUP = 32
LANES = 16  # rows of a tile
FORMS = {"q8": 0, "q4": 1, "k4": 2}  # of engine/weights/stored.py, as cpu.h numbers them
ALIGNED = 64  # bytes
LAYOUT = 1  # number of the layout of tiles in cpu.h, for files of them
THREADS = 4  # most threads of a call: more gain little, since memory is the limit
P, N, C, U = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_uint32
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "variant": (P, [C]),
    "name": (ctypes.c_char_p, [P]),
    "packed_bytes": (N, [N, N, N]),
    "pack": (None, [N, N, N, P, P, P, P, P]),
    "work_bytes": (N, [N, N]),
    "product": (None, [P, P, N, P, N, N, P, P]),
    "normalize": (None, [P, P, N, N, P, ctypes.c_float, P]),
    "lane_bytes": (N, [P, P]),
    "through": (None, [P, P]),
    "threads": (None, [C]),
    "repack": (C, [N, N, N, P, N, N, P]),
    "restore": (C, [N, N, N, P, N, P]),
    "best": (None, [P, P, N, P, P]),
    "weigh": (None, [P, P, P, P]),
    "uniform": (None, [ctypes.c_uint64, U, U, N, N, N, P]),
    "sources": (ctypes.c_char_p, []),
}
F32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]
QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: microseconds of CPU, and of the period they are for

log = logging.getLogger(__name__)


class NoVariant(Exception):
    """CAESURA_CPU names an unknown variant; one sentence for the user."""


class _Matrix(ctypes.Structure):
    _fields_ = (("rows", N), ("columns", N), ("form", N), ("tiles", P))


def cores() -> int:
    """The number of cores that this process may use, at least 1."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = (QUOTA.read_text() if QUOTA.is_file() else "").partition(" ")
    return max(1, min(count, int(quota) // int(period))) if quota.isdecimal() else count


def sources() -> str:
    """A hash of the C files in this folder, as setup.py computes it; empty if an installation has none."""
    files = sorted(path for path in Path(__file__).parent.rglob("*.[ch]"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest() if files else ""


@cache
def library() -> Any:
    """The functions of library.c by name; None if it was not built, cannot be loaded, or is older than its sources: its
    structures are then other ones."""
    for path in Path(__file__).parent.glob("_library*"):
        try:
            loaded = ctypes.CDLL(str(path))
            for name, (result, arguments) in SIGNATURES.items():
                function = getattr(loaded, f"caesura_{name}")
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            log.warning("%s cannot be used (%s); install Caesura again.", path, error)
            return None
        if sources() not in ("", loaded.caesura_sources().decode()):
            log.warning("%s is older than its sources; install Caesura again.", path)
            return None
        loaded.caesura_threads(min(THREADS, cores()))
        return loaded
    return None


@cache
def variants() -> dict[str, int]:
    """The address of each variant that this machine can run, the fastest first."""
    loaded, found = library(), dict[str, int]()
    while loaded and (variant := loaded.caesura_variant(len(found))):
        found[loaded.caesura_name(variant).decode()] = variant
    return found


def chosen() -> str:
    """The variant in use, or "torch" if there is none. Raises NoVariant."""
    asked = os.environ.get("CAESURA_CPU") or next(iter(variants()), "torch")
    if asked != "torch" and asked not in variants():
        raise NoVariant(f"CAESURA_CPU is {asked[:32]!r}; this machine has {', '.join([*variants(), 'torch'])}.")
    return asked


def aligned(size: int) -> Bytes:
    """So many zeros, uint8 [size], that begin at a multiple of ALIGNED; numpy's large arrays do not."""
    whole = np.zeros(size + ALIGNED, np.uint8)
    first = -address(whole) % ALIGNED
    return whole[first : first + size]


def address(array: NDArray[Any]) -> int:
    """Where its first number is; valid as long as the array lives."""
    return int(array.ctypes.data)


def packed_bytes(form: str, rows: int, columns: int) -> int:
    """The size of the tiles of a matrix."""
    return int(library().caesura_packed_bytes(FORMS[form], rows, columns))


class Matrix:
    """A matrix [rows, columns] in the tiles of cpu.h."""

    def __init__(self, form: str, *parts: NDArray[Any]) -> None:
        """Pack the parts of a stored form, in their order. Raises ValueError if they do not fit together."""
        codes = parts[0]
        rows, columns = codes.shape[0], codes.shape[1] * (1 if form == "q8" else 2)
        half, byte, groups = np.dtype(np.float16), np.dtype(np.uint8), columns // GROUP
        expected = {
            "q8": [(np.dtype(np.int8), columns), (half, groups)],
            "q4": [(byte, columns // 2), (half, groups), (half, groups)],
            "k4": [(byte, columns // 2), (byte, groups), (byte, groups), (half, 2)],
        }[form]
        if columns % GROUP or [(part.dtype, part.shape) for part in parts] != [(t, (rows, n)) for t, n in expected]:
            raise ValueError("its parts do not fit together")
        self._hold(form, rows, columns, aligned(packed_bytes(form, rows, columns)))
        unit = parts[3].astype(np.float32) / np.float32(255) if form == "k4" else None
        least = None if form == "q8" else parts[2]
        given = [None if part is None else np.ascontiguousarray(part) for part in (codes, parts[1], least, unit)]
        where = [None if part is None else address(part) for part in given]
        library().caesura_pack(FORMS[form], rows, columns, *where, address(self.tiles))

    @classmethod
    def empty(cls, form: str, rows: int, columns: int) -> "Matrix":
        """A matrix of zeros, whose tiles are to be filled. `columns` are whole groups."""
        found = cls.__new__(cls)
        found._hold(form, rows, columns, aligned(packed_bytes(form, rows, columns)))
        return found

    @classmethod
    def over(cls, form: str, rows: int, columns: int, tiles: Bytes) -> "Matrix":
        """A matrix over tiles that are there, uint8 [bytes], as in a mapped file. Its columns are rounded up to whole
        groups. Raises ValueError if they are not its tiles."""
        columns = -(-columns // GROUP) * GROUP
        if form not in FORMS or rows < 1 or columns < 1 or tiles.dtype != np.uint8 or address(tiles) % ALIGNED:
            raise ValueError("its tiles are no tiles")
        few = rows * columns > 2 * tiles.nbytes  # at 4 bits a weight; the library's own sums could overflow
        if few or tiles.shape != (packed_bytes(form, rows, columns),):
            raise ValueError(f"its tiles have {tiles.nbytes} bytes")
        found = cls.__new__(cls)
        found._hold(form, rows, columns, tiles)
        return found

    def _hold(self, form: str, rows: int, columns: int, tiles: Bytes) -> None:
        self.form, self.rows, self.columns, self.tiles = form, rows, columns, tiles
        self.held = _Matrix(rows, columns, FORMS[form], address(tiles))

    def restored(self, rows: NDArray[np.int64]) -> F32:
        """Rows [n] of a matrix of 8 bits, float32 [n, columns]. Reads nothing else of the tiles."""
        assert self.form == "q8"
        groups, (tile, lane) = self.columns // GROUP, np.divmod(rows, LANES)
        tiles = self.tiles.reshape(-(-self.rows // LANES), -1)
        codes, scales = tiles[:, : groups * GROUP * LANES], tiles[:, groups * GROUP * LANES :].view(np.float16)
        quads = codes.view(np.int8).reshape(len(tiles), -1, LANES, 4)[tile, :, lane]
        scale = scales[:, : groups * LANES].reshape(len(tiles), groups, LANES)[tile, :, lane]
        values = quads.reshape(len(rows), groups, GROUP).astype(np.float32) * scale.astype(np.float32)[..., None]
        return values.reshape(len(rows), self.columns)

    def __repr__(self) -> str:
        return f"<Matrix [{self.rows}, {self.columns}] in {self.tiles.nbytes} bytes>"


class Packed:
    """Matrices of the same number of columns, one below the other: a product has all of their rows."""

    def __init__(self, *matrices: Matrix) -> None:
        self.matrices = matrices
        self.rows, (self.columns,) = sum(matrix.rows for matrix in matrices), {matrix.columns for matrix in matrices}
        self._variant = variants()[chosen()]
        self.held = (P * len(matrices))(*(ctypes.addressof(matrix.held) for matrix in matrices))

    def __repr__(self) -> str:
        return f"<Packed {list(self.matrices)}>"

    def product(self, x: F32) -> F32:
        """[M, K] float32 -> [M, rows] float32. K may be below the columns if it fills as many groups."""
        x = np.ascontiguousarray(x)
        (count, columns), out = x.shape, np.empty((len(x), self.rows), np.float32)
        assert x.dtype == np.float32
        assert -(-columns // GROUP) * GROUP == self.columns
        work = np.empty(library().caesura_work_bytes(count, columns), np.uint8)
        where = (address(x), count, columns, address(out), address(work))
        library().caesura_product(self._variant, self.held, len(self.matrices), *where)
        return out
