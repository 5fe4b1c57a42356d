"""The licence gate of the corpus: which packages and which of their files may be taken."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from email.parser import HeaderParser
from fnmatch import fnmatchcase

ALLOWED = {
    "mit", "mit-0", "bsd-2-clause", "bsd-3-clause", "apache-2.0", "psf-2.0", "python-2.0", "isc", "0bsd", "zlib",
}  # fmt: skip
ALLOWED_CLASSIFIER = re.compile(r"\b(MIT|BSD|Apache Software|Python Software|ISC License|Zero-Clause|zlib)\b", re.I)
ALLOWED_WORDS = re.compile(
    r"(the )?(new |modified |simplified |revised |\d-clause )?(MIT|BSD|Apache|PSF|Python Software|ISC|0BSD|zlib)\b",
    re.I,
)
REFUSED_TEXT = re.compile(
    r"GNU (lesser |library |affero )?general public|\b[AL]?GPL(v|-)?[23]|mozilla public|\bMPL-?[12]|creative ?commons"
    r"|\bCC[- ]BY|business source|server side public|elastic license|commons clause|eclipse public|non-?commercial",
    re.I,
)
GPL = re.compile(r"\b[AL]?GPL\b")  # at the top of a file; whole licences name it to say that they go together with it
# A sentence of Python's own licence, which is allowed and names the GPL only to say where older code came from.
PYTHON_LICENCE = re.compile(r"previously\s+distributed\s+under\s+the\s+GNU\s+General\s+Public\s+License\s+\(GPL\)")
LICENCE_FILE = re.compile(r"(^|/)((un)?licen[cs]es?|copying)\b[^/]*$|(^|/)licen[cs]es/[^/]+$", re.I)
SPDX_HEADER = re.compile(r"SPDX-License-Identifier:\s*([\w.+() -]+)")


def spdx_allowed(expression: str) -> bool:
    """AND: all allowed; OR: any; WITH is refused, since `X WITH Y` is no allowed id."""
    while inner := re.search(r"\(([^()]*)\)", expression):
        expression = expression.replace(inner[0], "MIT" if spdx_allowed(inner[1]) else "refused")
    choices = re.split(r"\s+OR\s+", expression, flags=re.I)
    return any(all(one.strip().lower() in ALLOWED for one in re.split(r"\s+AND\s+", c, flags=re.I)) for c in choices)


def licence_of(spdx: str, classifiers: Iterable[str], words: str) -> str:
    """The licence a package declares, or "" if that is none of the allowed ones: SPDX, else classifiers, else words."""
    named = [c.rsplit("::", 1)[-1].strip() for c in classifiers if c.startswith("License ::")]
    named = [name for name in named if name != "OSI Approved"]
    if spdx:
        return spdx if spdx_allowed(spdx) else ""
    if named:
        return " AND ".join(named) if all(ALLOWED_CLASSIFIER.search(name) for name in named) else ""
    if spdx_allowed(words):
        return words
    match = ALLOWED_WORDS.match(words.strip())
    return match[0] if match and not REFUSED_TEXT.search(words) else ""


def refused_header(text: str) -> bool:
    """Whether a file says at its top that another licence than the package's holds for it."""
    head = text[:2000]
    spdx = SPDX_HEADER.search(head)
    return bool(REFUSED_TEXT.search(head) or GPL.search(head) or (spdx and not spdx_allowed(spdx[1].strip())))


def declared(files: dict[str, bytes]) -> tuple[str, str]:
    """(version, licence) from a wheel's METADATA or an npm package.json."""
    metadata = next((raw for path, raw in files.items() if path.endswith(".dist-info/METADATA")), None)
    if metadata is not None:
        head = HeaderParser().parsestr(metadata.decode("utf-8", "replace"))
        spdx, words = head["License-Expression"] or "", head["License"] or ""
        return head["Version"], licence_of(spdx, head.get_all("Classifier", []), words)
    manifest = json.loads(files["package.json"])
    licence = manifest.get("license", "")
    return manifest["version"], licence_of(licence if isinstance(licence, str) else "", [], "")


def gate(files: dict[str, bytes]) -> tuple[str, str]:
    """(version, licence); no licence if what is declared or what lies in the archive is not allowed."""
    version, licence = declared(files)
    texts = (raw.decode("utf-8", "replace") for path, raw in files.items() if LICENCE_FILE.search(path))
    refused = any(REFUSED_TEXT.search(PYTHON_LICENCE.sub("", text)) for text in texts)
    return version, "" if refused else licence


# What is said in a licence that has no name at its top.
WORDS = {
    "Apache-2.0": "Apache License Version 2.0, January 2004",
    "MIT": "Permission is hereby granted, free of charge, to any person obtaining a copy",
    "BSD": "Redistribution and use in source and binary forms, with or without modification, are permitted",
    "ISC": "Permission to use, copy, modify, and/or distribute this software for any purpose",
}


def licence_of_module(files: dict[str, bytes]) -> str:
    """By the words of the licence file at the top; "" if that is none of the allowed ones or another file forbids."""
    texts = {path: " ".join(raw.decode("utf-8", "replace").split()) for path, raw in files.items()}
    texts = {path: text for path, text in texts.items() if LICENCE_FILE.search(path)}
    top = next((text for path, text in sorted(texts.items()) if "/" not in path), "")
    refused = any(REFUSED_TEXT.search(text) for text in texts.values())
    return "" if refused else next((name for name, words in WORDS.items() if words in top), "")


# ---- Debian's source packages: debian/copyright says which licence holds for which file (DEP-5)

ODD = re.compile(r"[,\[{]|^/|/$")  # in a pattern: what its writer took for one and DEP-5 does not


def stanzas(copyright_file: str) -> list[tuple[list[str], str]]:
    """The patterns of files and the licence of each `Files` paragraph, in order; none where one cannot be read, or the
    file is no DEP-5: a paragraph that is lost may be the one that forbids."""
    text = re.sub(r"^#.*\n", "", copyright_file, flags=re.M)
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        head = HeaderParser().parsestr(paragraph.strip("\n"))
        if head["Files"] and head["License"]:
            found.append((head["Files"].split(), head["License"].strip().splitlines()[0].strip()))
    lost = len(re.findall(r"^Files\s*:", text, re.M | re.I)) != len(found)
    odd = any(ODD.search(pattern) for patterns, _ in found for pattern in patterns)
    return found if "copyright-format/1.0" in text and not lost and not odd else []


def licences_of_files(copyright_file: str, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(path, licence) of the files that may be taken: the last paragraph that names a file holds for it. A licence with
    a comma, which binds more loosely than `and` and `or`, is refused."""
    known = stanzas(copyright_file)
    for path in paths:
        licences = [licence for patterns, licence in known if any(matches(path, pattern) for pattern in patterns)]
        spdx = re.sub(r"\bExpat\b", "MIT", licences[-1], flags=re.I) if licences else ""
        if spdx_allowed(spdx) and "," not in spdx:
            yield path, spdx


def matches(path: str, pattern: str) -> bool:
    """`*` and `?` stand for slashes too, and nothing else is special."""
    return fnmatchcase(path, pattern.removeprefix("./"))
