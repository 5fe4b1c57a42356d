"""Prompts of code models: written by one function, read back by another, and never broken by what a file contains."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caesura.fim_formats import FORMATS, FimFile, FimFormat, MarkedText, render, undo

PIECES = sorted({piece for row in FORMATS.values() for piece in (*row.markers, *row.markers[0][:3], row.gap) if piece})
texts = st.lists(st.sampled_from([*PIECES, "<", ">", " ", "+", "[", "\n", "a", "é", "😀"]), max_size=6).map("".join)
names = texts.map(lambda text: text.replace("\n", ""))
prompts = st.tuples(
    st.sampled_from(list(FORMATS.values())),
    texts,
    texts,
    st.lists(st.builds(FimFile, names, texts), max_size=2).map(tuple),
)


@given(prompts)
def test_undoing_gives_back_what_was_rendered_or_rendering_refuses(
    parts: tuple[FimFormat, str, str, tuple[FimFile, ...]],
) -> None:
    format, prefix, suffix, files = parts
    everything = (prefix, suffix, *(text for file in files for text in (file.name, file.text)))
    marked = any(marker in text for marker in format.markers for text in everything)
    if marked:
        with pytest.raises(MarkedText, match=f"format {format.name}"):
            render(format, prefix, suffix, files)
        return
    found = undo(render(format, prefix, suffix, files))
    assert found
    if format.file or not files:
        assert (found.prefix, found.suffix, found.files) == (prefix, suffix, files)
    else:
        assert found.prefix == "".join(f"{file.name}\n{file.text}\n" for file in files) + prefix
        assert found.suffix == suffix


@pytest.mark.parametrize(
    ("prompt", "prefix", "suffix", "files"),
    [
        ("<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>", "a", "b", {}),
        ("<fim_prefix>a<fim_suffix>b<fim_middle>", "a", "b", {}),
        ("<PRE> a <SUF>b <MID>", "a", "b", {}),
        ("<｜fim▁begin｜>a<｜fim▁hole｜>b<｜fim▁end｜>", "a", "b", {}),
        ("[SUFFIX]b[PREFIX]a", "a", "b", {}),
        ("[SUFFIX]b[PREFIX]+++++ x/y.py\nz = 1\n\n\n+++++ main.py\na", "a", "b", {"x/y.py": "z = 1\n"}),
        ("[SUFFIX]b[PREFIX]+++++ x\nz\n\n+++++ main.py\na\nb = '+++++ '\nc", "a\nb = '+++++ '\nc", "b", {"x": "z"}),
        ("[SUFFIX]b[PREFIX]+++++ x\nz +++++ y\n\n+++++ main.py\na", "a", "b", {"x": "z +++++ y"}),
        ("<[fim-suffix]>b<[fim-prefix]>a<[fim-middle]>", "a", "b", {}),
        ("<|code_prefix|>a<|code_suffix|>b<|code_middle|>", "a", "b", {}),
        (
            "<|repo_name|>library\n<|file_sep|>x.py\nz = 1\n<|file_sep|>main.py\n"
            "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
            *("a", "b", {"x.py": "z = 1\n"}),
        ),
        ("<file_sep>x.py\nz<file_sep><fim_prefix>a<fim_suffix>b<fim_middle>", "a", "b", {"x.py": "z"}),
        (
            "<|file_separator|>x\nz<|file_separator|>y\n<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
            "a",
            "b",
            {"x": "z"},
        ),
    ],
)
def test_prompts_of_other_programs_are_read(prompt: str, prefix: str, suffix: str, files: dict[str, str]) -> None:
    found = undo(prompt)
    assert found
    assert (found.prefix, found.suffix) == (prefix, suffix)
    assert {file.name: file.text for file in found.files} == files


@pytest.mark.parametrize(
    "prompt",
    [
        *(
            "",
            "def f():\n",
            "[SUFFIX]b",
            "a[PREFIX]",
            "<|fim_prefix|>a<|fim_suffix|>b",
            "<|fim_suffix|>b<|fim_middle|>",
        ),
        "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>more",
        "<|fim_prefix|>a<|fim_prefix|>b<|fim_suffix|>c<|fim_middle|>",
        "before<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
        "<|fim_suffix|>b<|fim_prefix|>a<|fim_middle|>",
    ],
)
def test_other_texts_are_no_prompts(prompt: str) -> None:
    assert undo(prompt) is None
