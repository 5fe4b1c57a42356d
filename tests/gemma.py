"""A small tokenizer of Gemma's kind, made by code: BPE with `▁` for a space, tokens for bytes and turns."""

import json
import re
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers, trainers

from .tiny import CODE

UNFLAGGED = "<|tool_response>"  # a control token that the file does not call special
CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", UNFLAGGED]
PLAIN = "<table>"  # an added token that is text
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def tokenizer(path: Path, **changes: Any) -> Path:
    """Write it to `path`, with sections of the file replaced by `changes`."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    inner.normalizer = normalizers.Replace(" ", "▁")
    inner.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=[*CONTROL, *BYTES, PLAIN], show_progress=False)
    inner.train_from_iterator(re.findall(r" ?\w+|\s+|.", CODE), trainer)
    file = json.loads(inner.to_str())
    file["added_tokens"] = [
        {**token, "special": token["content"] not in (UNFLAGGED, PLAIN), "lstrip": token["content"] == "<unk>"}
        for token in file["added_tokens"]
        if token["content"] not in BYTES
    ]
    path.write_text(json.dumps({**file, **changes}))
    return path


def leading_to(token: str, file: dict[str, Any]) -> dict[str, Any]:
    """The model section of `file` with merges that spell `token`."""
    model = file["model"]
    vocabulary, merges = dict(model["vocab"]), []
    for end in range(1, len(token)):
        for part in (token[0], token[end], token[: end + 1]):
            vocabulary.setdefault(part, len(vocabulary))
        merges.append([token[:end], token[end]])
    return {**model, "vocab": vocabulary, "merges": merges}
