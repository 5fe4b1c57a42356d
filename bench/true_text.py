"""What our own checks take from the author's text: no model is asked.

    python bench/true_text.py REPOSITORY... [--language NAME] [--lost KIND] [--keep]

Places are cut from the files of checked-out repositories; the author's text goes through what finishes and judges ghost
text. One row a language: how many of each kind of place come out whole, and how many empty bodies are holes of the kind
"block". `--lost` prints what is lost of a kind; `--keep` writes the files of tests/infill/test_true_text.py.
"""

import argparse
import hashlib
import json
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from caesura.server.languages import Language, grammar, language
from tests.support.true_text import FILES, LICENCES, Place, is_whole, places, shown

WITHOUT = {"json", "jsonc", "jsonl", "markdown"}  # structured edits judge these
FOREIGN = {"node_modules", "3rd-party", "vendor", "unity", "docs", "doc", "dist", "css"}  # folders of others' files
MOST = 300  # places of a kind and language
KEPT, LARGEST = 4, 5000  # files a language in the repository, and their code points
SEED = 3


def files(repository: Path) -> Iterator[tuple[Path, Language, str]]:
    """The files of languages with a grammar."""
    for path in sorted(repository.rglob("*")):
        inside = path.relative_to(repository)
        row = language("", path.name)
        if FOREIGN & set(inside.parts) or ".min." in path.name or row.id in WITHOUT or not path.is_file():
            continue
        if grammar(row) is not None and path.suffix:
            text = path.read_text("utf-8", errors="replace")
            if "\ufffd" not in text and "\r" not in text:
                yield path, row, text


def table(repositories: list[Path], only: str | None, lost: str | None) -> None:
    found: dict[tuple[str, str], list[tuple[Path, Place]]] = defaultdict(list)
    for repository in repositories:
        for path, row, text in files(repository):
            for place in places(text, row) if only in (None, row.id) else ():
                found[row.id, place.kind].append((path, place))
    for name in sorted({name for name, _ in found}):
        cells = [f"{name:16}"]
        for kind in ("line", "header", "statement", "body"):
            chosen = random.Random(SEED).sample(found[name, kind], min(MOST, len(found[name, kind])))
            results = [(path, place, shown(place, language(name))) for path, place in chosen]
            whole = sum(is_whole(place, result) for _, place, result in results)
            cells.append(f"{kind} {whole} of {len(results)}")
            if kind == "body":
                cells.append(f"block {sum(result.kind == 'block' for *_, result in results)}")
            for path, place, result in results if kind == lost else ():
                if not is_whole(place, result):
                    print(f"{path}\n  {place.before[-100:]!r}\n  {place.text!r}\n  {result.gated!r}\n")
        print("  ".join(cells), flush=True)


def keep(repositories: list[Path]) -> None:
    """Write small files of each language, chosen by their names' hashes, with the licences of their repositories."""
    by_language: dict[str, list[tuple[str, Path, Path, str]]] = defaultdict(list)
    for repository in repositories:
        for path, row, text in files(repository):
            if 500 < len(text) <= LARGEST and len({place.kind for place in places(text, row)}) >= (
                3 if row.words or row.openers else 1
            ):
                rank = hashlib.sha256(path.name.encode()).hexdigest()
                by_language[row.id].append((rank, repository, path, text))
    with FILES.open("w", encoding="utf-8") as out:
        for name, ranked in sorted(by_language.items()):
            for _, repository, path, text in sorted(ranked)[:KEPT]:
                about = {
                    "language": name,
                    "repository": repository.name.replace("+", "/"),
                    "commit": _commit(repository),
                }
                out.write(json.dumps({**about, "path": str(path.relative_to(repository)), "text": text}) + "\n")
    used = {repository for ranked in by_language.values() for _, repository, *_ in sorted(ranked)[:KEPT]}
    parts = []
    for repository in sorted(used):
        licence = next(path for path in sorted(repository.iterdir()) if path.name.lower().startswith("licen"))
        parts.append(f"{repository.name.replace('+', '/')}\n\n{licence.read_text('utf-8').strip()}\n")
    LICENCES.write_text(f"\n{'-' * 80}\n\n".join(parts), "utf-8")


def _commit(repository: Path) -> str:
    return subprocess.run(
        ["git", "-C", str(repository), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description="What our own checks take from the author's text.")
    parser.add_argument("repositories", nargs="+", type=Path)
    parser.add_argument("--language")
    parser.add_argument("--lost", metavar="KIND")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    if options.keep:
        return keep(options.repositories)
    table(options.repositories, options.language, options.lost)


if __name__ == "__main__":
    main()
