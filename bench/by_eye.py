"""Ghost text at places of real files, in a real Neovim, for a reader to judge.

    python bench/by_eye.py REPOSITORY... --nvim PROGRAM [--language NAME] [--seed N] [--out FILE]

A place of each kind a language, drawn from files of checked-out repositories. The author's text after it is taken away,
with or without the rest of the file; the last keys are typed with the editor's own settings, Tab is pressed, and the
text that it writes is kept. `verdict` is empty, or one of an earlier run that wrote the same text at the same place:
right, useful, wrong, silent or harmful, written into the file by whoever has read it. With a silent place goes why.
"""

import argparse
import asyncio
import json
import os
import random
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latency import CAESURA, HERE, Report, conditions, own_engine, save
from simulator import own_records, warm_up

from caesura import model_store
from caesura.server.languages import language

sys.path.insert(0, str(HERE.parent))
from tests.real.neovim import PLUGIN, Neovim

FOREIGN = {"test", "tests", "spec", "specs", "vendor", "docs", "doc", "samples", "bench", "fixtures"}
SMALLEST, LARGEST = 1_500, 120_000  # code points of a file
WAIT_S = 4.0  # for ghost text after the last key
LATE_S = 12.0  # as long as the model still computes, on a busy machine
STEADY_S = 1.0  # in which it has stopped growing
READY_S = 60.0
LANGUAGES = ("go", "rust", "cpp", "shellscript", "ruby", "lua", "csharp")
SHOWN = 100  # code points that are kept of a text

# The text of a line before a place in it, and after.
WITHIN = {
    "equals": r"[ \t]+[^=\"'()#/]*[\w\]>] ?:?=(?![=>])[ \t]?(?=\S)",
    "call": r"[ \t]+[^\"'#/]*\w\((?=[^)\s])",
    "return": r"[ \t]+return (?=\S)",
    "header": r"[ \t]+(?:if|for|while|foreach|unless|until) \(?(?=\S)",
    "comment": r"[ \t]*(?://+!?|--+|#) (?:<\w+> *)?[A-Z]\w+ \w+ (?=\w+ \w+)",
}
SUBSTITUTION = {"shellscript": {"call": r"[ \t]+[^'#]*\$\((?=\w)"}}  # has no calls
IMPORT = {
    "go": r'\t"(?=[\w./]+"$)',
    "rust": r"(?:pub )?use (?=\w)",
    "cpp": r"#include [<\"](?=\w)",
    "shellscript": r"[ \t]*(?:source|\.) \"?(?=[^\"])",
    "ruby": r"require(?:_relative)? '(?=\w)",
    "lua": r"local \w+ = require ?\(?['\"]?(?=\w)",
    "csharp": r"using (?=\w)",
}
ARM = {
    "go": r"\s+(?:case .*|default):$",
    "rust": r"\s+[\w:]+(?:\(.*\)| \{.*\})? => ",
    "cpp": r"\s+(?:case .*|default):$",
    "shellscript": r"\s+[^()]+\)$",
    "ruby": r"\s+when .*$",
    "lua": r"\s+elseif .* then$",
    "csharp": r"\s+(?:case .*:|[\w.<>]+ => )$",
}
WHY = """
local client = vim.lsp.get_clients({ name = "caesura", bufnr = 0 })[1]
local position = vim.lsp.util.make_position_params(0, client.offset_encoding).position
local place = { uri = vim.uri_from_bufnr(0), position = position }
local params = { command = "caesura.why", arguments = { place } }
return client:request_sync("workspace/executeCommand", params, 10000, 0).result"""
HEREDOC = r".*<<-?\s*['\"]?\w+['\"]?$"
KINDS = ("body", "equals", "call", "return", "header", "empty body", "empty body, top down", "arm", "import", "comment")
SHELL = ("heredoc" if kind == "return" else "end of file" if kind == "comment" else kind for kind in KINDS)
DROPPED = {"body", "return", "header", "empty body, top down", "end of file"}  # places after which the file ends
KINDS_OF = {"shellscript": tuple(SHELL)}


@dataclass(frozen=True)
class Place:
    """The buffer is `before + after`, with the cursor between them, and `keys` are typed; the author wrote `theirs`."""

    kind: str
    before: str
    keys: str
    theirs: str
    after: str


def places(text: str, name: str, kind: str) -> Iterator[Place]:
    """All places of a kind in a file."""
    lines = text.split("\n")
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line) + 1)
    within = {**WITHIN, **SUBSTITUTION.get(name, {}), "import": IMPORT[name]}.get(kind)
    for number, line in enumerate(lines[:-1]):
        if within or (kind == "arm" and name == "rust"):
            found = re.match(within or ARM[name], line)
            if found and line[found.end() :].strip():
                typed = min(3, len(found[0].lstrip()))
                at, end = offsets[number] + found.end() - typed, offsets[number] + len(line)
                keys = text[at : at + typed]
                yield _place(kind, text[:at], keys, text[at + typed : end], text[end:])
            continue
        last = _last(lines, number, kind, name)
        if last:
            end = offsets[number] + len(line)
            keys = "\n\n" if kind == "end of file" else "\n"
            yield _place(kind, text[:end], keys, text[end + 1 : offsets[last] - 1], text[offsets[last] - 1 :])


def _place(kind: str, before: str, keys: str, theirs: str, after: str) -> Place:
    if kind in DROPPED:
        theirs, after = (theirs + after)[:SHOWN], "\n"
    return Place(kind, before, keys, theirs, after)


def _last(lines: Sequence[str], number: int, kind: str, name: str) -> int:
    """The number of the line after the author's text that follows line `number`; 0 if that is no place of the kind."""
    line, after = lines[number], lines[number + 1]
    indent = _indent(line)
    below = next((at for at in range(number + 1, len(lines)) if lines[at].strip() and _indent(lines[at]) <= indent), 0)
    body = 1 <= below - number - 1 <= 6 and line.strip() and after.strip()
    match kind:
        case "body":
            same = indent > 0 and _indent(after) == indent and re.match(r"\s*\w.*[\w;)]$", line)
            return number + 2 if same and re.match(r"\s*[a-zA-Z]\w", after) and "end" not in after else 0
        case "empty body" | "empty body, top down":
            closed = body and re.match(r"\s*(?:\}|end\b|fi\b|done\b)", lines[below]) and _indent(lines[below]) == indent
            return below if closed and not re.match(ARM[name], line) else 0
        case "arm":
            return below if body and re.match(ARM[name], line) else 0
        case "heredoc":
            mark = re.search(r"(\w+)['\"]?$", line) if re.match(HEREDOC, line) else None
            ends = (at for at in range(number + 1, len(lines)) if mark and lines[at].strip() == mark[1])
            return next(ends, -1) + 1
        case "end of file":
            return number + 2 if line in ("}", "end") and not after and number + 2 < len(lines) else 0
    raise ValueError(kind)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def drawn(repositories: Sequence[Path], name: str, seed: int) -> Iterator[tuple[Path, Path, Place]]:
    """A place of each kind, with its repository and file. A file is read only until it has such a place."""
    files = [(repository, path) for repository in repositories for path in sorted(repository.rglob("*"))]
    files = [(repository, path) for repository, path in files if _is_ours(repository, path, name)]
    for kind in KINDS_OF.get(name, KINDS):
        draw = random.Random(f"{seed} {name} {kind}")
        for repository, path in draw.sample(files, len(files)):
            text = path.read_text("utf-8")
            if SMALLEST < len(text) < LARGEST and (found := list(places(text, name, kind))):
                yield repository, path, draw.choice(found)
                break


def _is_ours(repository: Path, path: Path, name: str) -> bool:
    inside = path.relative_to(repository)
    if not path.is_file() or path.is_symlink() or FOREIGN & {part.lower() for part in inside.parts}:
        return False
    if path.suffix:
        return language("", path.name).id == name
    with path.open("rb") as file:
        return name == "shellscript" and re.match(rb"#!.*\b(?:ba)?sh\b", file.readline()) is not None


def shown(program: str, path: Path, place: Place, model: str) -> dict[str, Any]:
    """Type at the place, in a Neovim of its own. The file has only what was written before."""
    original = path.read_bytes()
    path.write_text(place.before + place.after, "utf-8")
    neovim = Neovim(program, width=180, height=50)
    try:
        neovim.command(f"set rtp^={PLUGIN} | runtime plugin/caesura.lua")
        neovim.command(f"edit {path}")
        setup = {"cmd": [*CAESURA, "lsp"], "settings": {"model": model_store.resolve(model)}, "keymaps": True}
        neovim.lua("require('caesura').setup(...)", setup)
        state = "return require('caesura.status').get().state"
        neovim.wait(lambda: neovim.lua(state) == "ready", "the engine", READY_S)
        rows = place.before.split("\n")
        neovim.call("nvim_win_set_cursor", 0, [len(rows), len(rows[-1].encode())])
        neovim.input("a" if rows[-1] else "i")
        time.sleep(0.5)
        for key in place.keys:
            neovim.input({"\n": "<CR>", "<": "<lt>", " ": "<Space>"}.get(key, key))
            time.sleep(0.12)
        return _answer(neovim, time.monotonic())
    finally:
        neovim.close()
        path.write_bytes(original)


def _answer(neovim: Neovim, since: float) -> dict[str, Any]:
    """The ghost text, as soon as it grows no longer, and the text that Tab writes."""
    ghost, changed, end, why = "", since, since + WAIT_S, {"message": ""}
    while (now := time.monotonic()) < end and not (ghost and now > changed + STEADY_S):
        time.sleep(0.02)
        if neovim.ghost != ghost:
            ghost, changed = neovim.ghost, time.monotonic()
        elif not ghost and now > since + WAIT_S - 1.0:
            why = neovim.lua(WHY)
            late = "computing" in why["message"] or "There is a suggestion" in why["message"]
            end = since + (LATE_S if late else WAIT_S)
            time.sleep(0.5)
    if not ghost:
        return {"ms": None, "written": "", "why": why["message"], "proposed": (why.get("text") or "")[:SHOWN]}
    before = "\n".join(neovim.lines)
    neovim.input("<Tab>")
    neovim.settle()
    after = "\n".join(neovim.lines)
    start = _alike(before, after)
    end = _alike(before[start:][::-1], after[start:][::-1])
    found = {"ms": round((changed - since) * 1000), "written": after[start : len(after) - end]}
    if removed := before[start : len(before) - end]:
        found["removed"] = removed
    return found


def _alike(one: str, other: str) -> int:
    """The length of the common start."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def measure(program: str, repositories: Sequence[Path], names: Sequence[str], seed: int, model: str) -> Report:
    with own_records(), own_engine():
        found: Report = {"bench": "by eye", **conditions(model), "seed": seed, "places": []}
        asyncio.run(warm_up(model))
        for name in names:
            for repository, path, place in drawn(repositories, name, seed):
                answer = shown(program, path, place, model)
                line = place.before.count("\n") + 1
                about = f"{repository.name.replace('+', '/')}/{path.relative_to(repository)}:{line}"
                texts = {"above": place.before[-60:] + place.keys, "author": place.theirs[:SHOWN]}
                found["places"].append({"language": name, "kind": place.kind, "place": about, **texts, **answer})
                print(f"{name}, {place.kind}, {about}", file=sys.stderr, flush=True)
    return found


def judged(found: Report, out: Path) -> Report:
    """With the verdicts of an earlier run on the same text at the same place."""
    earlier = json.loads(out.read_text("utf-8"))["places"] if out.exists() else []
    known = {(one["place"], one["kind"], one["written"]): one["verdict"] for one in earlier}
    for one in found["places"]:
        silent = "" if one["written"] else "silent"
        one["verdict"] = known.get((one["place"], one["kind"], one["written"]), silent)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Ghost text in a real Neovim, for a reader to judge.")
    parser.add_argument("repositories", nargs="+", type=Path)
    parser.add_argument("--model", default=model_store.DEFAULT, metavar="NAME|PATH")
    parser.add_argument("--nvim", default=os.environ.get("NVIM", "nvim"), metavar="PROGRAM")
    parser.add_argument("--language", choices=LANGUAGES, action="append", help="default: all")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "by-eye.json")
    options = parser.parse_args()
    repositories = [path.resolve() for path in options.repositories]
    found = measure(options.nvim, repositories, options.language or LANGUAGES, options.seed, options.model)
    save(judged(found, options.out), options.out)


if __name__ == "__main__":
    main()
