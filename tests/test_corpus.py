"""Every filter of training/corpus.py, each with a case that only that filter catches. No network, no benchmark data."""

import gzip
import importlib.util
import json
import random
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("corpus", Path(__file__).parents[1] / "training" / "corpus.py")
corpus = importlib.util.module_from_spec(SPEC)
sys.modules["corpus"] = corpus  # dataclasses look their module up
SPEC.loader.exec_module(corpus)


def source(seed: int, functions: int = 6) -> str:
    """Python that no other seed shares a long line with."""
    word = random.Random(seed)
    names = ["".join(word.choices("abcdefghijklmnopqrstuvwxyz", k=9)) for _ in range(functions)]
    return "\n\n".join(f"def {n}_value({n}_left, {n}_right):\n    return {n}_left + {n}_right" for n in names) + "\n"


TASK = {
    "prompt": 'def has_near_elements(numbers: list, threshold: float) -> bool:\n    """Are any two numbers nearer'
    ' to each other than the given threshold? Compare every pair of them once."""\n',
    "canonical_solution": "    return any(abs(a - b) < threshold for a, b in itertools.combinations(numbers, 2))\n",
    "entry_point": "has_near_elements",
}
SECRET_LINE = "frobnicate_the_evaluation_target(alpha,  beta)"


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    (folder / "human-eval").mkdir(parents=True)
    (folder / "exclude").mkdir()
    with gzip.open(folder / "human-eval" / "HumanEval.jsonl.gz", "wt") as out:
        out.write(json.dumps(TASK) + "\n")
    (folder / "exclude/blocklist_sha256.txt").write_text(corpus.sha256("pypi:secret-bench") + "\n")
    folded = " ".join(SECRET_LINE.split())
    (folder / "exclude/target_line_hashes16.txt").write_text(corpus.sha256(folded)[:16] + "\n")
    return folder


@pytest.fixture
def exclusions(data):
    return corpus.Exclusions.read(data)


@pytest.fixture
def built(tmp_path, exclusions):
    return corpus.Corpus(tmp_path / "out", 1_000_000, exclusions, seed=0)


def package(*files: tuple[str, str], name: str = "demo", licence: str = "MIT") -> corpus.Package:
    return corpus.Package("pypi", name, "1.0", licence, "0" * 64, [(path, text.encode()) for path, text in files])


def dropped(built) -> dict[str, int]:
    return built.rows[-1]["dropped"]


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("Apache-2.0 AND BSD-3-Clause", True),
        ("MIT AND GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("GPL-2.0-only OR LGPL-2.1-only", False),
        ("(MIT OR GPL-2.0) AND ISC", True),
        ("MIT AND (GPL-2.0 AND ISC)", False),
        ("Apache-2.0 WITH LLVM-exception", False),
        ("", False),
    ],
)
def test_spdx_expressions(expression, allowed):
    assert corpus.spdx_allowed(expression) is allowed


@pytest.mark.parametrize(
    ("spdx", "classifiers", "words", "licence"),
    [
        ("MIT", ["License :: OSI Approved :: GNU General Public License (GPL)"], "", "MIT"),
        ("GPL-3.0-only", ["License :: OSI Approved :: MIT License"], "MIT", ""),
        ("", ["License :: OSI Approved", "License :: OSI Approved :: BSD License"], "", "BSD License"),
        ("", ["License :: OSI Approved :: MIT License", "License :: Other/Proprietary License"], "MIT", ""),
        ("", [], "Apache License, Version 2.0", "Apache"),
        ("", [], "MIT for the code, Creative Commons for the text", ""),
        ("", [], "see the file LICENSE", ""),
        ("", [], "", ""),
    ],
)
def test_declared_licence(spdx, classifiers, words, licence):
    assert corpus.licence_of(spdx, classifiers, words) == licence


def metadata(licence: str) -> bytes:
    return f"Metadata-Version: 2.4\nName: demo\nVersion: 1.2\nLicense-Expression: {licence}\n\nA demo.\n".encode()


@pytest.mark.parametrize(
    ("text", "licence"),
    [
        ("Permission is hereby granted, free of charge", "MIT"),
        ("GNU LESSER GENERAL PUBLIC LICENSE Version 3", ""),
        ("This Source Code Form is subject to the Mozilla Public License", ""),
        ("Creative Commons Attribution", ""),
        ("Business Source License 1.1", ""),
        ("material previously\ndistributed under the GNU General Public License (GPL), the law of Virginia", "MIT"),
    ],
)
def test_licence_files_inside_the_archive_refuse_the_package(text, licence):
    files = {"demo-1.2.dist-info/METADATA": metadata("MIT"), "demo/data/COPYING.txt": text.encode()}
    assert corpus.gate(files) == ("1.2", licence)


def test_a_module_called_licence_is_no_licence_file():
    assert not corpus.LICENCE_FILE.search("demo/licenses_page.py")
    assert corpus.LICENCE_FILE.search("demo/LICENSE")


def test_a_refused_package_leaves_nothing(built):
    built.take(package(("demo/a.py", source(1)), licence=""))
    assert dropped(built) == {"package licence": 1}
    assert not built.waiting["shard"]


NOISE = "# " + "x" * 40 + "\n"
FAULTS = {
    "vendored": ("demo/_vendor/a.py", source(1)),
    "generated": ("demo/a.py", "# Code generated by protoc. DO NOT EDIT.\n" + source(1)),
    "transpiled": ("lib/a.js", "Object.defineProperty(exports, '__esModule', { value: true });\n" + NOISE * 8),
    "misshapen": ("demo/a.py", "words = '" + "word " * 400 + "'\n"),
    "header licence": ("demo/a.py", "# SPDX-License-Identifier: AGPL-3.0-only\n" + source(1)),
    "secret": ("demo/a.py", source(1) + "KEY = 'AKIA" + "ABCDEFGH" * 2 + "'\n"),
    "unparsable": ("demo/a.py", source(1) + "print 'two'\n"),
}


@pytest.mark.parametrize("reason", FAULTS)
def test_each_fault_is_found(reason):
    path, text = FAULTS[reason]
    assert corpus.fault(path, text, corpus.language(path)) == reason


def test_an_ordinary_file_has_no_fault():
    assert corpus.fault("demo/a.py", source(1), "python") == ""


@pytest.mark.parametrize(
    ("reason", "text"),
    [("leak", TASK["prompt"] + TASK["canonical_solution"]), ("secret", FAULTS["secret"][1])],
)
def test_what_is_found_is_left_out(built, reason, text):
    built.take(package(("demo/a.py", text), ("demo/b.py", source(2))))
    assert dropped(built) == {reason: 1}
    assert [record["path"] for record in built.waiting["shard"]] == ["demo/b.py"]


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        ("token = 'ghp_" + "a1B2" * 9 + "'", True),
        ("-----BEGIN RSA " + "PRIVATE KEY-----", True),
        ("password = 'correct" + "horse1battery2staple'", True),
        ("jwt = 'eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc'", True),
        ("password = 'password'", False),
        ("token = 'a_long_setting_without_a_number'", False),
    ],
)
def test_secrets(line, secret):
    assert bool(corpus.SECRETS.search(line)) is secret


def test_addresses_are_replaced_and_line_endings_kept(built):
    built.take(package(("demo/a.py", "# Written by jane.doe@mail.corp.com\r\n" + source(1).replace("\n", "\r\n"))))
    text = built.waiting["shard"][0]["text"]
    assert text.startswith("# Written by name@example.com\r\n")
    assert "jane" not in text


def test_addresses_do_not_hide_operators_and_decorators():
    text = "y = x@weights.T\n@app.route\nclone git@github.com:a/b\n"
    assert corpus.EMAIL.sub("name@example.com", text) == text


def test_exact_duplicates_are_dropped_even_without_long_lines(built):
    short = "".join(f"from short import n{i}\n" for i in range(20))
    built.take(package(("demo/a.py", short), ("demo/b.py", short.replace("\n", "\n\n"))))
    assert dropped(built) == {"duplicate": 1}


@pytest.mark.parametrize(("old", "new", "seen"), [(7, 3, True), (5, 5, False)])
def test_near_duplicates_have_more_than_60_percent_known_lines(old, new, seen):
    known, fresh = source(1, old), source(2, new)
    duplicates = corpus.Duplicates()
    duplicates.add(known)
    assert duplicates.seen(known + fresh) is seen


def test_blocked_packages_are_never_asked_for(exclusions, monkeypatch):
    monkeypatch.setattr(corpus, "PYPI", ["Secret_Bench", "demo"])
    monkeypatch.setattr(corpus, "NPM", [])
    assert corpus.sources(exclusions, set(), seed=0) == [("pypi", "demo")]
    assert not exclusions.package("npm", "secret-bench")


def test_excluded_lines_are_found_however_they_are_spaced(built):
    built.take(package(("demo/a.py", source(1) + "if True:\n    " + SECRET_LINE.replace("  ", " ") + "\n")))
    assert dropped(built) == {"excluded line": 1}


def test_benchmark_text_is_a_leak_but_a_phrase_of_it_is_not(exclusions):
    body = TASK["prompt"].replace("has_near_elements", "renamed") + TASK["canonical_solution"]
    assert exclusions.leak(source(1) + "\n" + body)
    assert not exclusions.leak(
        source(1) + "# any two numbers nearer to each other than the given threshold? Compare every\n"
    )


def test_benchmark_functions_are_a_leak_but_methods_are_not(exclusions):
    assert exclusions.leak("def has_near_elements(xs):\n    return False\n")
    assert not exclusions.leak("class A:\n    def has_near_elements(self):\n        return False\n")


def test_no_benchmark_is_an_error_not_a_leak(data):
    (data / "human-eval" / "HumanEval.jsonl.gz").unlink()
    with pytest.raises(AssertionError, match="leak"):
        corpus.Exclusions.read(data)


@pytest.mark.parametrize(
    ("path", "share", "reason"),
    [
        ("demo/tests/test_a.py", "TEST_SHARE", "test share"),
        ("demo/a.py", "PACKAGE_SHARE", "package share"),
    ],
)
def test_shares_are_capped(built, monkeypatch, path, share, reason):
    monkeypatch.setattr(corpus, share, 0.001)
    built.take(package(*[(path.replace("a.py", f"{i}.py"), source(i)) for i in range(10)]))
    assert dropped(built)[reason] >= 5
    assert built.rows[-1]["files"] >= 1


def test_languages_are_capped(built, monkeypatch):
    monkeypatch.setitem(corpus.LANGUAGE_SHARES, "toml", 0.0)
    tables = [(f"demo/{i}.toml", f"[table{i}]\n" + f"some_long_key_{i} = 'and a value {i}'\n") for i in range(3)]
    built.take(package(*tables))
    assert dropped(built) == {"language share": 2}


def test_the_held_out_split_is_by_package_and_spelling_does_not_matter(built):
    held = next(name for i in range(1000) if package(name=(name := f"some-name-{i}")).held_out)
    assert package(name=held.replace("-", "_").upper()).held_out
    built.take(package(("demo/a.py", source(1)), name=held))
    built.take(package(("demo/a.py", source(2)), name="demo"))
    built.flush()
    read = {p.name: p for p in built.folder.glob("*.gz")}
    assert sorted(read) == ["heldout-000.jsonl.gz", "shard-000.jsonl.gz"]
    assert json.loads(gzip.decompress(read["heldout-000.jsonl.gz"].read_bytes()))["package"] == f"pypi:{held}"


def test_a_second_run_skips_what_is_finished_and_remembers_its_lines(built, exclusions):
    built.take(package(("demo/a.py", source(1))))
    built.flush()
    again = corpus.Corpus(built.folder, 1_000_000, exclusions, seed=0)
    assert again.finished() == {"pypi:demo"}
    assert again.bytes == built.bytes
    again.take(package(("other/b.py", source(1)), name="other"))
    assert dropped(again) == {"duplicate": 1}


def wheel(folder: Path) -> Path:
    path = folder / "demo-1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("demo-1.2.dist-info/METADATA", metadata("MIT"))
        archive.writestr("demo/a.py", source(1))
        archive.writestr("demo/small.py", "x = 1\n")
        archive.writestr("demo/blob.so", "x" * 500)
    return path


def test_a_wheel_is_read_without_installing_it(monkeypatch):
    monkeypatch.setattr(corpus, "download", lambda registry, name, folder: wheel(Path(folder)))
    fetched = corpus.fetch("pypi", "demo")
    assert (fetched.version, fetched.licence, len(fetched.sha256)) == ("1.2", "MIT", 64)
    assert fetched.files == [("demo/a.py", source(1).encode())]


def tarball(folder: Path) -> Path:
    inner = folder / "package"
    (inner / "src").mkdir(parents=True)
    (inner / "package.json").write_text(json.dumps({"version": "3.1", "license": "ISC"}))
    (inner / "src/a.ts").write_text(NOISE * 8)
    path = folder / "demo-3.1.tgz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(inner, "package")
    return path


def test_an_npm_tarball_is_read(monkeypatch):
    monkeypatch.setattr(corpus, "download", lambda registry, name, folder: tarball(Path(folder)))
    fetched = corpus.fetch("npm", "demo")
    assert (fetched.version, fetched.licence) == ("3.1", "ISC")
    assert "src/a.ts" in dict(fetched.files)


def test_the_list_names_each_package_once():
    assert len(corpus.PYPI) == len(set(corpus.PYPI))
    assert len(corpus.NPM) == len(set(corpus.NPM))
