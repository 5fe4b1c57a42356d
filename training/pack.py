"""Pack a corpus for a machine without network: token ids in little-endian uint16, 65535 behind every file, compressed
by LZMA into files under 14 MiB.

    python training/pack.py --corpus FOLDER --tokenizer tokenizer.json --out FOLDER

Token ids are about a tenth smaller than the text, compressed alike; decoding gives the text back byte for byte.
`pack.json` names the tokenizer by the sha256 of its vocabulary.
"""

import argparse
import gzip
import hashlib
import json
import lzma
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from caesura.engine.tokens.tokenizer import Tokenizer

END = 65_535  # no token: vocabularies are smaller
LIMIT = 13 << 20  # compressed bytes after which a new file begins; the last ones in the compressor fit into 1 MiB
# Two-byte units: literal position and match alignment follow the byte within the id.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 2, "lp": 1, "pb": 1, "dict_size": 1 << 25}]
SPLITS = ("shard", "heldout")


def shard_texts(shard: Path) -> list[str]:
    with gzip.open(shard, "rt", encoding="utf-8", newline="") as lines:
        return [json.loads(line)["text"] for line in lines]


def fingerprint(tokenizer: Tokenizer) -> str:
    return hashlib.sha256(b"\0".join(tokenizer.pieces)).hexdigest()


def packs(shards: Sequence[Path], tokenizer: Tokenizer, limit: int) -> Iterator[tuple[bytes, Counter[str]]]:
    """Compressed packs one after the other, each with its number of files and tokens."""
    assert tokenizer.size < END, "token ids do not fit into 16 bits"
    done: bytearray = bytearray()
    counts: Counter[str] = Counter()
    for tokens in (t for shard in shards for t in tokenizer.encode_batch(shard_texts(shard))):
        if not counts["files"]:
            compressor = lzma.LZMACompressor(filters=FILTERS)
        done += compressor.compress(np.array([*tokens, END], "<u2").tobytes())
        counts.update(files=1, tokens=len(tokens))
        if len(done) >= limit:
            yield bytes(done + compressor.flush()), counts
            done, counts = bytearray(), Counter()
    if counts["files"]:
        yield bytes(done + compressor.flush()), counts


def write(corpus: Path, tokenizer: Tokenizer, out: Path, *, limit: int = LIMIT) -> None:
    """All shards of `corpus` as packs in the folder `out`."""
    out.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {"tokenizer": fingerprint(tokenizer)}
    for split in SPLITS:
        total: Counter[str] = Counter(files=0, tokens=0)
        for number, (data, counts) in enumerate(packs(sorted(corpus.glob(f"{split}-*.jsonl.gz")), tokenizer, limit)):
            (out / f"{split}-{number:03}.pack").write_bytes(data)
            print(f"{split}-{number:03}.pack: {dict(counts)}, {len(data)} bytes", flush=True)
            total.update(counts)
        about[split] = dict(total)
    (out / "pack.json").write_text(json.dumps(about, indent=1) + "\n")


def is_packed(corpus: Path) -> bool:
    return (corpus / "pack.json").is_file()


class Packed(Sequence[str]):
    """The texts of a split, held as ids and decoded when asked for."""

    def __init__(self, folder: Path, split: str, tokenizer: Tokenizer) -> None:
        about = json.loads((folder / "pack.json").read_text())
        assert about["tokenizer"] == fingerprint(tokenizer), f"{folder} was packed with another tokenizer"
        paths = sorted(folder.glob(f"{split}-*.pack"))
        parts = [np.frombuffer(lzma.decompress(path.read_bytes()), "<u2") for path in paths]
        self._ids = np.concatenate([np.empty(0, "<u2"), *parts])
        self._ends = np.flatnonzero(self._ids == END)
        assert len(self._ends) == about[split]["files"], f"{folder} lacks packs of {split}"
        self._tokenizer = tokenizer

    def __repr__(self) -> str:
        return f"<Packed {len(self)} texts, {len(self._ids) - len(self)} tokens>"

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        start = int(self._ends[number - 1]) + 1 if number else 0
        return self._tokenizer.decode(self._ids[start : int(self._ends[number])].tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    write(arguments.corpus, Tokenizer(arguments.tokenizer), arguments.out)


if __name__ == "__main__":
    main()
