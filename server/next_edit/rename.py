"""The uses of a name that the user gave another one at its declaration, by the scopes of the syntax tree."""

from collections.abc import Sequence
from typing import NamedTuple

import tree_sitter

from caesura.server.context.scopes import Definition, Extent, LexicalScope, Scopes
from caesura.server.next_edit.gates import swapped
from caesura.server.next_edit.history import PastEdit
from caesura.server.next_edit.source import EditedSource
from caesura.server.next_edit.tokens import tokens

_MEMBER_MARKS = frozenset((".", "?.", "->", "::", "optional_chain"))  # before the name of a member
_DECLARES_MEMBER = frozenset(
    [
        "field_declaration",
        "method_declaration",
        "method_spec",
        "method_elem",
        "method_definition",
        "field_definition",
        "public_field_definition",
        "property_signature",
        "method_signature",
        "abstract_method_signature",
    ]
)
_KEYS = frozenset(("keyword_argument", "keyed_element", "pair", "labeled_statement"))  # their first child is no use
_SHORTHAND = frozenset(("shorthand_property_identifier", "shorthand_field_initializer"))


class Use(NamedTuple):
    """Bytes `start:end` of a row, from the row's start, which become `text`."""

    row: int
    start: int
    end: int
    text: str


class Renaming(NamedTuple):
    """`old` is now called `new` where it is declared, in the place of `edit`. `uses`, in order, still say `old`."""

    edit: PastEdit
    old: str
    new: str
    uses: Sequence[Use]


def renaming(edit: PastEdit, source: EditedSource, history: Sequence[PastEdit]) -> Renaming | None:
    """None unless the edit only renames a declaration, the old name is no longer declared where the new one is, the new
    one is declared nowhere else there, and uses of the old name are left."""
    swap = swapped(edit)
    if swap is None or tuple(source.rows[edit.at : edit.end]) != edit.new:
        return None
    scopes = source.scopes
    if scopes is None:
        return None
    old, new = swap
    if new in tokens(edit.old):
        return None
    place = source.extent(edit.at, edit.end)
    declared = [node for node in source.leaves.get(new, ()) if _extent(node) in place]
    definition = next((one for one in scopes.definitions(new) if one in place and one.kind != "import"), None)
    if any(map(_declares_member, declared)) or (definition and _in_class(definition, declared)):
        nodes = _member_uses(source, scopes, old)
    elif definition:
        edited = [source.extent(one.at, one.end) for one in history]
        taken = any(
            one.owner is definition.owner and not any(one in place for place in edited)
            for one in scopes.definitions(new)
        )
        nodes = [] if taken else _uses(source, scopes, old, definition)
    else:
        nodes = _type_uses(source, declared, old)
    uses = [_use(node, new) for node in nodes]
    return Renaming(edit, old, new, uses) if uses else None


def _uses(source: EditedSource, scopes: Scopes, old: str, definition: Definition) -> list[tree_sitter.Node]:
    """The uses of a local name or a function; none if the old name is declared in the same scope again."""
    declared = list(scopes.definitions(old))
    owners = [one.owner for one in declared]
    if any(owner is definition.owner for owner in owners):
        return []
    return [
        node
        for node in source.leaves.get(old, ())
        if _is_plain(node, types=definition.kind == "type")
        and not any(_extent(node) in one for one in declared)
        and _sees(scopes.around(_extent(node)), definition.owner, owners)
    ]


def _sees(path: Sequence[LexicalScope], owner: LexicalScope, others: Sequence[LexicalScope]) -> bool:
    """True if a use in these scopes means the declaration of `owner`, and not a nearer one of `others`."""
    for scope in path:
        if scope is owner:
            return True
        if any(scope is other for other in others):
            return False
    return False


def _member_uses(source: EditedSource, scopes: Scopes, old: str) -> list[tree_sitter.Node]:
    """The uses of a field or method; none if another one of that name is declared in the file."""
    nodes = source.leaves.get(old, [])
    again = any(map(_declares_member, nodes)) or any(_in_class(one, nodes) for one in scopes.definitions(old))
    return [] if again else [node for node in nodes if _is_member(node)]


def _type_uses(source: EditedSource, declared: Sequence[tree_sitter.Node], old: str) -> list[tree_sitter.Node]:
    """The uses of a type whose declaration binds no variable."""
    code = source.code
    assert code is not None, "there are scopes"
    bound = code.captures(Extent(0, len(code.source))).get("import.bound", []) if declared else []
    types = [node for node in bound if node.type == "type_identifier"]
    if not any(node in types for node in declared) or any(code.text(node) == old for node in types):
        return []
    return [node for node in source.leaves.get(old, ()) if _is_plain(node, types=True)]


def _declares_member(node: tree_sitter.Node) -> bool:
    """True for a field or method where its class declares it, and for an attribute of Python's `self` that is set."""
    around = node.parent
    if around is None:
        return False
    if around.type in _DECLARES_MEMBER:
        return node in (*around.children_by_field_name("name"), *around.children_by_field_name("property"))
    if around.type == "function_item":  # of Rust
        body = around.parent
        return node == around.child_by_field_name("name") and body is not None and body.type == "declaration_list"
    outer = around.parent
    if around.type != "attribute" or outer is None or outer.type != "assignment":
        return False
    target = around.child_by_field_name("object")
    return outer.child_by_field_name("left") == around and target is not None and target.text == b"self"


def _in_class(definition: Definition, nodes: Sequence[tree_sitter.Node]) -> bool:
    """True for a name that Python's class binds in its body."""
    return definition.owner.kind == "class" and any(_extent(node) in definition for node in nodes)


def _is_member(node: tree_sitter.Node) -> bool:
    before = node.prev_sibling
    return before is not None and before.type in _MEMBER_MARKS


def _is_plain(node: tree_sitter.Node, *, types: bool) -> bool:
    """True if an identifier is neither a member nor a key; the name of a type only where `types` are meant."""
    around = node.parent
    if _is_member(node) or node.type in ("property_identifier", "field_identifier") or around is None:
        return False
    if around.type == "literal_element" and around.parent is not None:  # of Go
        node, around = around, around.parent
    is_key = around.type in _KEYS and around.children[0] == node
    return not is_key and (types or node.type != "type_identifier")


def _use(node: tree_sitter.Node, new: str) -> Use:
    """A property of the same name as its value keeps its name."""
    around = node.parent
    shorthand = node.type in _SHORTHAND or (around is not None and around.type in _SHORTHAND)
    text = f"{(node.text or b'').decode()}: {new}" if shorthand else new
    return Use(node.start_point[0], node.start_point[1], node.end_point[1], text)


def _extent(node: tree_sitter.Node) -> Extent:
    return Extent(node.start_byte, node.end_byte)
