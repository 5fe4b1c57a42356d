"""Damaged and hostile files and frames, each told by its number: bytes changed anywhere, parts of JSON and of
safetensors' headers put in the place of others, and what is no file. For test_fuzz.py and bench/fuzz.py.
"""

import contextlib
import json
import math
import os
import random
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from caesura import wire
from caesura.engine import models
from caesura.engine.model import ModelError
from caesura.engine.scheduler import Scheduler
from caesura.engine.weights import stored

from ..checkpoints import dits, gemma, qwen, tiny
from .hostile_models import LARGE, OBSTACLES

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 2**31, 2**32 - 1, 2**63, 2**64, 10**400, 0.5, -0.0, 1e308, math.inf, math.nan),
    *("", "a", " ", "▁", "\0", "\ud800", "a" * 100_000, "F64", "BF16", "I64", "../../etc/passwd", [], {}, [[]], [0, 1]),
    *([-1, 2**40], {"type": "Sequence"}, {"Regex": "(a|aa)+$"}, {"String": "a"}, [0] * 10_000),
)
NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1)
STEPS = 400  # of a fill, far more than one takes
TEXT = tiny.CODE[:1500] + "\U0001f600 ünï 中\u2028 ▁ <bos> ~`^"


def damaged(data: bytes, chance: random.Random) -> bytes:
    """One to four changes of bytes."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(changed) + 1)
        size = min(len(changed) - at, 1 << chance.randrange(12))
        match chance.randrange(7):
            case 0 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                del changed[at : at + size]
            case 2:
                changed[at:at] = changed[at : at + size]
            case 3:
                changed[at : at + size] = chance.randbytes(size)
            case 4:
                changed[at : at + 8] = struct.pack(chance.choice("<>") + "Q", chance.choice(NUMBERS))
            case 5:
                changed[at : at + size] = bytes([chance.choice((0, 0x22, 0x5B, 0x7B, 0xC1, 0xFF))]) * size
            case _ if chance.random() < 0.3:
                del changed[at:]
    return bytes(changed)


def replaced(value: Any, chance: random.Random) -> Any:
    """`value`, of JSON, with something in it gone, doubled, or hostile."""
    if isinstance(value, dict | list) and value and chance.random() < 0.9:
        key = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
        new: Any = dict(value) if isinstance(value, dict) else list(value)
        match chance.randrange(8):
            case 0:
                del new[key]
            case 1 if isinstance(new, list):
                new.insert(key, new[key])
            case 1:
                new[chance.choice(("zz", key * 2, key[:-1]))] = new[key]
            case 2:
                other = chance.choice(list(new)) if isinstance(new, dict) else chance.randrange(len(new))
                new[key], new[other] = new[other], new[key]
            case _:
                new[key] = replaced(value[key], chance)
        return new
    if isinstance(value, int) and chance.random() < 0.5:
        return value + chance.choice((-value, -1, 1, value, 2**31, 2**40))
    return chance.choice(HOSTILE)


def file(path: Path, chance: random.Random) -> None:
    """Another file in its place."""
    data = path.read_bytes()
    if chance.random() < 0.03 and os.name == "posix":
        path.unlink()
        OBSTACLES[chance.choice(list(OBSTACLES))](path)
    elif chance.random() < 0.4 or path.suffix == ".txt":
        path.write_bytes(damaged(data, chance))
    elif path.suffix == ".json":
        text = json.dumps(replaced(json.loads(data), chance), ensure_ascii=chance.random() < 0.7)
        path.write_bytes(text.encode(errors="surrogatepass"))
    else:
        (size,) = struct.unpack_from("<Q", data)
        header = json.dumps(replaced(json.loads(data[8 : 8 + size]), chance)).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + size :])


class Frames:
    """Messages of the wire, their bytes or their fields changed."""

    def __init__(self, messages: Sequence[wire.ClientMessage | wire.EngineMessage]) -> None:
        self._plain = [wire.encode(message) for message in messages]
        self._fields = [msgspec.msgpack.decode(frame) for frame in self._plain]

    def mutant(self, chance: random.Random) -> bytes:
        which = chance.randrange(len(self._plain))
        frame = damaged(self._plain[which], chance)
        if chance.random() < 0.4:
            with contextlib.suppress(OverflowError, UnicodeEncodeError):  # what msgpack itself cannot say
                frame = msgspec.msgpack.encode(replaced(self._fields[which], chance))
        return frame


class Folders:
    """Whole models with every kind of file between them, and damaged copies of them."""

    def __init__(self, where: Path) -> None:
        self._copy = where / "copy"
        self._whole = [tiny.make(where / "tiny"), gemma.published(where / "gemma")]
        self._whole += [qwen.published(where / "qwen"), dits.published(where / "mdlm", "mdlm")]
        for folder in self._whole[2:]:
            said = {"eos_token": "<eos>", "tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": {}}
            (folder / "tokenizer_config.json").write_text(json.dumps(said))
        (where / "mdlm" / "added_tokens.json").write_text("{}")
        schedule = self._whole[1] / "generation_config.json"
        schedule.write_text(json.dumps(json.loads(schedule.read_text()) | {"max_denoising_steps": 2}))  # is enough here

    def mutant(self, number: int) -> str:
        """What was damaged, and what became of it. Whatever it raises but ModelError is a defect."""
        chance = random.Random(number)
        whole = chance.choice(self._whole)
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(whole, self._copy)
        path = chance.choice(sorted(self._copy.iterdir()))
        file(path, chance)
        manifest = self._copy / "manifest.json"
        whole_file = path.is_file() and path.stat().st_size < LARGE  # holes take long to hash
        if manifest.is_file() and path != manifest and whole_file and chance.random() < 0.9:
            stored.write_manifest(self._copy, {})  # by its author's own hand
        what = f"{whole.name} {path.name}"
        try:
            model = models.load(str(self._copy), "cpu")
        except ModelError as error:
            sentence = str(error)
            assert "\n" not in sentence, f"no sentence: {sentence!r}"
            assert len(sentence) < 1000, f"no sentence: {sentence!r}"
            return f"{what} refused"
        assert model.tokenizer.decode(model.tokenizer.encode(TEXT)) == TEXT, "text is lost"
        job = tiny.infill("job", "def count(total):\n    ret", "\n", wire.Hole(8))
        scheduler = Scheduler(model)
        events = scheduler.take(b"peer", job, 0.0)
        for _ in range(STEPS):
            events += scheduler.step(lambda: 0.0) if scheduler.busy else []
        last = events[-1][1]
        assert isinstance(last, wire.Done | wire.Failed), "a job without an end"
        return f"{what} loaded, {type(last).__name__}"
