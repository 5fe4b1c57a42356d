"""How code models mark a gap in a prompt ("fill in the middle"): a table, a function that writes such a prompt and one
that reads it. Pure.

Text that contains a marker of its format is refused: a marker in a file would end a part of the prompt early, and an
escape would show the model another text than the file's. Other files are laid out as llama-server does it for models
that have a separator; models without one were trained on plain text, so there the files become part of the prefix.
"""

from dataclasses import dataclass

OWN = "filename"  # stands for the name of the file with the gap, which nobody tells us
REPOSITORY = "project"


class MarkedText(ValueError):
    """A text contains a marker of the format; the message is a sentence for the user."""


@dataclass(frozen=True)
class FimFile:
    """Another file that helps. `name` is one line."""

    name: str
    text: str


@dataclass(frozen=True)
class FimFormat:
    """The markers. Without a `middle` the prompt ends with the prefix, and other files are part of it. `file` starts a
    file, `gap` ends it, and `repository` starts the list of them. `ends` are what a model writes after the gap."""

    name: str
    prefix: str
    suffix: str
    middle: str
    suffix_first: bool = False
    file: str = ""
    repository: str = ""
    gap: str = ""
    ends: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """What no text may contain, and where an answer ends at the latest."""
        return tuple(filter(None, (*self.ends, self.file, *self.gap_markers, self.repository)))

    @property
    def gap_markers(self) -> tuple[str, ...]:
        """Those around the gap, without white space."""
        return tuple(filter(None, (self.prefix.strip(), self.suffix.strip(), self.middle.strip())))


@dataclass(frozen=True)
class FimPrompt:
    """A prompt in parts; `format` is the first in the table that it fits."""

    format: FimFormat
    prefix: str
    suffix: str
    files: tuple[FimFile, ...] = ()


_STAR = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
_PIPES = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
_DEEPSEEK = ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>")
_SEED = ("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>")
_GLM = ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>")

# Sources: the models' cards and papers. Those that share markers differ in the separators and in how they end.
FORMATS = {
    row.name: row
    for row in (
        FimFormat("qwen", *_PIPES, file="<|file_sep|>", repository="<|repo_name|>", ends=("<|endoftext|>",)),
        FimFormat("starcoder", *_STAR, file="<file_sep>", repository="<repo_name>", ends=("<|endoftext|>",)),
        FimFormat("codellama", "<PRE> ", " <SUF>", " <MID>", ends=("<EOT>",)),
        FimFormat("deepseek", *_DEEPSEEK, ends=("<｜end▁of▁sentence｜>",)),
        FimFormat("codestral", "[PREFIX]", "[SUFFIX]", "", True, file="+++++ ", gap="\n\n", ends=("</s>",)),
        FimFormat("codegemma", *_PIPES, file="<|file_separator|>", ends=("<eos>",)),
        FimFormat("granite", *_PIPES, file="<|filename|>", repository="<|reponame|>", ends=("<|end_of_text|>",)),
        FimFormat("seed-coder", *_SEED, suffix_first=True, ends=("<[end▁of▁sentence]>",)),
        FimFormat("glm", *_GLM, ends=("<|endoftext|>",)),
    )
}


def render(format: FimFormat, prefix: str, suffix: str, files: tuple[FimFile, ...] = ()) -> str:
    """The prompt for the gap between `prefix` and `suffix`. Raises MarkedText."""
    _check(format, format.markers, prefix, suffix, files)
    if not format.file:
        prefix = with_files(prefix, files)
    listed = _listed(format, files) if files and format.file else ""
    if not format.middle:
        return format.suffix + suffix + format.prefix + listed + prefix
    before, after = format.prefix + prefix, format.suffix + suffix
    return listed + (after + before if format.suffix_first else before + after) + format.middle


def plain(prefix: str, suffix: str, files: tuple[FimFile, ...] = ()) -> str:
    """The prompt for a server that takes a suffix and formats the two itself, in a format that we do not know. It may
    read markers out of them, so the markers of a gap are refused in every format. Raises MarkedText."""
    for format in FORMATS.values():
        _check(format, format.gap_markers, prefix, suffix, files)
    return with_files(prefix, files)


def with_files(prefix: str, files: tuple[FimFile, ...]) -> str:
    """The prefix after the other files, each below its name."""
    return "".join(f"{file.name}\n{file.text}\n" for file in files) + prefix


def undo(prompt: str) -> FimPrompt | None:
    """The parts of a prompt in a format of the table, None for any other text. They are what `render` was given, except
    where the format has no separator: there the files are in the prefix."""
    return next((found for format in FORMATS.values() if (found := _undone(format, prompt))), None)


def _check(format: FimFormat, markers: tuple[str, ...], prefix: str, suffix: str, files: tuple[FimFile, ...]) -> None:
    for text in (prefix, suffix, *(part for file in files for part in (file.name, file.text))):
        if marker := next((marker for marker in markers if marker in text), None):
            raise MarkedText(f"The text contains {marker}, which marks prompts of the format {format.name}.")


def _listed(format: FimFormat, files: tuple[FimFile, ...]) -> str:
    """The files, and the line after which the own one stands."""
    repository = f"{format.repository}{REPOSITORY}\n" if format.repository else ""
    before = (f"{format.file}{file.name}\n{file.text}{format.gap}" for file in files)
    return repository + "".join(before) + f"{format.file}{OWN}\n"


def _undone(format: FimFormat, prompt: str) -> FimPrompt | None:
    marks = (format.suffix, format.prefix) if format.suffix_first else (format.prefix, format.suffix)
    if any(prompt.count(mark) != 1 for mark in (*marks, format.middle) if mark) or not prompt.endswith(format.middle):
        return None
    listed, _, rest = prompt.removesuffix(format.middle).partition(marks[0])
    first, found, second = rest.partition(marks[1])
    prefix, suffix = (second, first) if format.suffix_first else (first, second)
    if not (format.middle or listed) and prefix.startswith(format.file):
        own = prefix.find("\n", (format.gap + prefix).rfind(format.gap + format.file)) + 1
        listed, prefix = prefix[:own], prefix[own:]
    files = _files(format, listed)
    return FimPrompt(format, prefix, suffix, files) if found and files is not None else None


def _files(format: FimFormat, listed: str) -> tuple[FimFile, ...] | None:
    """None where `listed` is no list of files. The last one is the own one, which may have a name."""
    if not listed:
        return ()
    starts = format.gap + format.file  # the first file begins without the gap
    repository, *others = (format.gap + listed).split(starts) if starts else [listed]
    if not others or (repository and not (format.repository and repository.startswith(format.repository))):
        return None
    parts = (other.partition("\n") for other in others[:-1])
    return tuple(FimFile(name, text) for name, _, text in parts)
