"""The link targets of a Markdown document, and the edits of its links, which take only targets that it has."""

import re
from collections.abc import Iterator

from caesura.server.structured.markdown.blocks import Block, MarkdownTree
from caesura.server.structured.markdown.changes import MarkdownChange, hole_of, tried
from caesura.server.structured.markdown.patterns import Inline, either, few
from caesura.server.structured.offer import NoOffer, Offer

_TEXT_TOKENS, _TARGET_TOKENS = 24, 32
_LINK = re.compile(
    r"(!?)\[(?:[^\[\]\\\n]|\\.)*\]\([ \t]*(<[^<>\n]+>|[^\s()<>]+(?:\([^\s()]*\)[^\s()]*)*)|<(https?://[^\s<>]+)>|"
    r"(https?://[^\s<>()|\"]+)"
)
_SEARCHED = 20_000  # code points of a block: the search for the end of code spans takes quadratic time
_TICKS = re.compile(r"(?<!\\)(`+)(?!`)(.*?)(?<!`)\1(?!`)", re.DOTALL)


def inline_of(document: MarkdownTree, line: int, without: Block | None = None) -> Inline:
    """The patterns of inline text for a hole in the line; a link to block `without` is not allowed."""
    near = sorted(targets(document, without), key=lambda found: abs(found[0] - line))
    labels = [str(block.detail[0]) for _, block in document.blocks if block.kind == "definition"]
    return Inline([target for _, target, image in near if not image], labels)


def targets(document: MarkdownTree, without: Block | None = None) -> Iterator[tuple[int, str, bool]]:
    """The link targets and the anchors of headings, each as (line, target, whether it is an image), but for those in
    block `without`."""
    slugs = dict[str, int]()
    for _, block in document.blocks:
        if block.kind == "definition":
            yield block.first, str(block.detail[1]), False
        if block is without or block.kind not in ("paragraph", "heading", "table"):
            continue
        text = document.content(block)[:_SEARCHED]
        if block.kind == "heading" and (slug := _slug(text)):
            count = slugs[slug] = slugs.get(slug, -1) + 1
            yield block.first, f"#{slug}-{count}" if count else f"#{slug}", False
        if "](" in text or "://" in text:
            numbers = list(block.starts)
            text = _TICKS.sub(lambda code: "\n" * code[0].count("\n"), text)
            for match in _LINK.finditer(text):
                target = match[2] or match[3] or match[4].rstrip(".,;:!?'*_~")
                yield numbers[text.count("\n", 0, match.start())], target, match[1] == "!"


def _slug(heading: str) -> str:
    """The anchor that code hosts give a heading."""
    text = re.sub(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])", r"\1", re.sub(r"[ \t]#+$", "", heading))
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def in_link(document: MarkdownTree, block: Block, start: int, end: int) -> Offer | None:
    """Fill the target of `[text]()` or the text of `[](target)`, if the cursor stands in the empty brackets or the
    selection is all that they hold."""
    if block.kind not in ("paragraph", "heading", "table"):
        return None
    number = document.line_of(start)
    line = document.lines[number]
    head, selected, tail = line.text[: start - line.start], document.text[start:end], document.text[end : line.end]
    change = MarkdownChange(document, document.root.last)
    opening = document.lines[block.first].start
    if "\n" in selected or _is_code(document.text[opening : line.end], start - opening):
        return None
    if match := re.search(r"(!?)\[(?:[^\[\]\\]|\\.)*\]\($", head):
        if not tail.startswith(")") or re.search(r"[\s()]", selected):
            return None
        near = sorted(targets(document), key=lambda found: abs(found[0] - number))
        fit = [target for _, target, image in near if image == bool(match[1]) and target != selected]
        names = few(target for target in fit if block.kind != "table" or "|" not in target)
        if not names:
            raise NoOffer("The document has no other link, anchor or definition to take the target from.")
        hole = hole_of(either(names), _TARGET_TOKENS, "span")
        return tried("Fill the link's target", document.text, change, (start, end), [hole], samples=names[:1])
    if head.endswith("[") and re.match(r"\]\([^()\s]+\)", tail) and not re.search(r"[\[\]]", selected):
        hole = hole_of(Inline().link_text, _TEXT_TOKENS, "span")
        return tried("Fill the link's text", document.text, change, (start, end), [hole])
    return None


def _is_code(text: str, at: int) -> bool:
    return any(match.start() < at < match.end() for match in _TICKS.finditer(text))
