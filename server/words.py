"""The words that open and close blocks, in languages that do without braces. The lexer reads them as brackets."""

import re
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, eq=False)
class Words:
    """`closers` maps each word that opens a block to the word that closes it.

    A word counts where a statement may begin: at the start of a line, or where the line before it matches `after`.
    Those in `anywhere` count in every place, those in `modifiers` not after `return`: `return if done`. A `do` in the
    line of one of the `loops` opens nothing more. A line that begins with one of the `middles` begins another part of
    a block that one of its words has opened, or any if it has none. `patterns`: in a `case`, ")" may end a pattern. A
    definition that matches `endless` has no block. `body` stands for a body that is not written yet. `commands`: a
    cut statement would still run, as something else.
    """

    closers: dict[str, str]
    after: str = r"[=(\[{,;|&!]\s*\Z"
    anywhere: frozenset[str] = frozenset()
    modifiers: frozenset[str] = frozenset()
    loops: frozenset[str] = frozenset()
    middles: dict[str, str] = field(default_factory=dict)
    patterns: bool = False
    endless: str = r"(?!)"
    body: str = ""
    commands: bool = False

    @property
    def pattern(self) -> str:
        """A regular expression for the marks."""
        words = "|".join(sorted({*self.closers, *self.closers.values()}, key=len, reverse=True))
        return rf"(?<![\w.@$:/-])(?:{words})(?![\w?!:/-])"

    def opens(self, word: str, line: str, rest: str, innermost: str) -> bool:
        """True if `word`, between `line` and `rest` in its line, opens a block; `innermost` is the block that this line
        has opened last."""
        if word not in self.closers or (word == "do" and innermost in self.loops):
            return False
        return self._counts(word, line) and not re.match(self.endless, word + rest)

    def closes(self, word: str, line: str) -> bool:
        """True if `word`, after `line`, closes a block."""
        return word in self.closers.values() and self._counts(word, line)

    def closer(self, word: str) -> str:
        """The word that closes the block of `word`."""
        return self.closers[word]

    def turns(self, line: str) -> bool:
        """True if a line begins another part of a block."""
        found = re.match(r"\s*([\w;]+)", line)
        return found is not None and found[1] in self.middles

    def openers(self, line: str) -> set[str]:
        """The marks of which one must be open where such a line begins; none if any line may stand there."""
        if self.commands and line.lstrip().startswith("}"):
            return {"{"}  # alone it is the name of a command
        found = re.match(r"\s*(\w+)(?![\w?!:=(.-])", line)
        word = found[1] if found else ""
        return {*self.middles.get(word, "").split(), *(one for one, closer in self.closers.items() if closer == word)}

    def _counts(self, word: str, line: str) -> bool:
        if word in self.modifiers and line.rstrip().endswith("return"):
            return False
        return word in self.anywhere or not line.strip() or bool(re.search(self.after, line))


_VOID = "area|base|br|col|embed|hr|img|input|link|meta|param|source|track|wbr"
_OPTIONAL = "body|colgroup|dd|dt|head|html|li|optgroup|option|p|rp|rt|tbody|td|tfoot|th|thead|tr"


@dataclass(frozen=True, eq=False)
class Tags:
    """The tags of markup, as block words. Elements of HTML whose end may be left out open no block for the lexer, but a
    line that begins with one begins a part of a block."""

    html: bool = True

    patterns: ClassVar[bool] = False
    body: ClassVar[str] = ""
    commands: ClassVar[bool] = False

    @property
    def pattern(self) -> str:
        """A regular expression for the marks."""
        left_out = rf"(?!(?:{_VOID}|{_OPTIONAL})\b)" if self.html else ""
        return rf"</?{left_out}[A-Za-z][\w:.-]*\s*>?|/>"

    def opens(self, tag: str, line: str, rest: str, innermost: str) -> bool:
        return tag[0] == "<" and tag[1:2] != "/"

    def closes(self, tag: str, line: str) -> bool:
        return tag.startswith("</")

    def closer(self, tag: str) -> str:
        return f"</{tag[1:].rstrip(' >')}>"

    def openers(self, line: str) -> set[str]:
        return set()

    def turns(self, line: str) -> bool:
        return self.html and bool(re.fullmatch(rf"\s*<({_OPTIONAL})\b(?:(?!</\1).)*>", line))


def _to(closer: str, words: str) -> dict[str, str]:
    return dict.fromkeys(words.split(), closer)


SHELL = Words(
    _to("fi", "if") | _to("done", "for while until select") | _to("esac", "case"),
    after=r"(?:[;|&(){}!`]|\b(?:then|do|else|elif|if|while|until|time))\s*\Z",
    middles={"else": "if", "elif": "if", "then": "if", "do": "for while until select"},
    patterns=True,
    body=":",
    commands=True,
)
RUBY = Words(
    _to("end", "def class module if unless while until for case begin do"),
    after=r"(?:[=(\[{,;|&!]|\b(?:then|do|else|return|and|or|not|private|protected|public|private_class_method))\s*\Z",
    anywhere=frozenset(["do", "end"]),
    modifiers=frozenset(["if", "unless", "while", "until"]),
    loops=frozenset(["while", "until", "for"]),
    middles={
        "else": "if unless case begin def do for while until",
        "elsif": "if unless",
        "when": "case",
        "in": "case",
        "rescue": "begin def do class module",
        "ensure": "begin def do class module",
    },
    endless=r"def\s+[\w.]+[?!]?\s*(?:\([^()]*\))?\s*=\s",
)
LUA = Words(
    _to("end", "function if for while do") | _to("until", "repeat"),
    after=r"(?:;|\b(?:then|do|else|return))\s*\Z",
    anywhere=frozenset(["function", "end", "until"]),
    middles={"else": "if", "elseif": "if"},
)
ELIXIR = Words(
    _to("end", "do fn"),
    anywhere=frozenset(["do", "fn", "end"]),
    middles=dict.fromkeys(["else", "rescue", "catch", "after"], ""),
)
JULIA = Words(
    _to("end", "function if for while let begin try do struct mutable module macro quote"),
    anywhere=frozenset(["do", "end"]),
    middles=dict.fromkeys(["else", "elseif", "catch", "finally"], ""),
)
SQL = Words(
    _to("end", "begin case loop") | _to("END", "BEGIN CASE LOOP"),
    anywhere=frozenset(["case", "CASE", "loop", "LOOP", "end", "END"]),
    middles=dict.fromkeys(["else", "ELSE", "exception", "EXCEPTION"], ""),
)
CMAKE = Words(
    _to("endif", "if") | _to("endforeach", "foreach") | _to("endwhile", "while"),
    middles=dict.fromkeys(["else", "elseif"], ""),
)
HTML, XML = Tags(), Tags(html=False)
