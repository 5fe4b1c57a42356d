"""Reads and checks a schema document. The documents read last are kept."""

import json
import math
from collections.abc import Iterator

from caesura.automata import regex_syntax
from caesura.automata.regex_syntax import Alternatives, Lookahead, RegexTree, Repeated, parse
from caesura.recent import Recent
from caesura.schema.dialects import SchemaError, Value
from caesura.schema.document import Schema, escape
from caesura.schema.validation import automaton, validator_class

MAX_BYTES = 1 << 20
KEPT = 24 << 20  # bytes of schemas kept
COST = 20  # bytes of memory for each byte of a schema's text, plus
LEAST_COST = 200_000  # bytes for every schema
MAX_NESTED = 100  # subschemas of one and the same value, one inside the other


def read_schema(text: str) -> Schema:
    """The schema in a JSON text. Raises SchemaError."""
    found = _kept.get(text)
    if found is None:
        found = _parsed(text)
        _kept.put(text, found)
    return found


_kept = Recent[str, Schema](KEPT, lambda text, _: LEAST_COST + COST * len(text))


def _parsed(text: str) -> Schema:
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise SchemaError("The schema is larger than 1 MiB; use a smaller one.")
    try:
        schema = Schema(_json(text))
        _check(schema)
        _check_depth(schema)
        _check_patterns(schema)
    except RecursionError:
        raise SchemaError("The schema is nested too deeply; move parts of it to the top and refer to them.") from None
    return schema


def _json(text: str) -> dict[str, Value] | bool:
    try:
        document = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except ValueError as error:
        raise SchemaError(f"The schema is not JSON ({error}); correct it.") from None
    if not isinstance(document, dict | bool):
        raise SchemaError("The schema is neither an object nor true or false; correct it.")
    return document


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number is too large")
    return number


def _check(schema: Schema) -> None:
    """Validate the document against the meta-schema of its dialect."""
    validator = validator_class(schema.dialect)
    check = validator(validator.META_SCHEMA)
    for at in ("", *schema.apart):
        for error in check.iter_errors(schema.raw(at)):
            where = at + "".join(f"/{escape(str(step))}" for step in error.absolute_path)
            message = error.message if len(error.message) <= 200 else f"{error.message[:200]}…"
            raise SchemaError(f"The schema is invalid at {where or 'its top'}: {message}; correct it.")


def _check_patterns(schema: Schema) -> None:
    """Refuse patterns that are slow in Python: for `unevaluatedProperties`, the library uses Python's."""
    parts = [part for part in map(schema.raw, ("", *schema.pointers)) if isinstance(part, dict)]
    if any("unevaluatedProperties" in part for part in parts):
        for pattern in {pattern for part in parts for pattern in part.get("patternProperties", {})}:
            if automaton(pattern) is None or _backtracks(parse(pattern)):
                raise SchemaError(f"Next to `unevaluatedProperties` the pattern {pattern[:80]!r} is too costly.")


def _backtracks(tree: RegexTree, *, repeated: bool = False) -> bool:
    """True if a pattern repeats a part that has several readings itself: Python's engine may then not end."""
    match tree:
        case regex_syntax.Concatenation(parts):
            return any(_backtracks(part, repeated=repeated) for part in parts)
        case Alternatives(parts):
            return repeated or any(_backtracks(part) for part in parts)
        case Repeated(part, least, most):
            several = most is None or most > 1
            return (repeated and least != most) or _backtracks(part, repeated=repeated or several)
        case Lookahead(part):
            return _backtracks(part, repeated=repeated)
    return False


def _check_depth(schema: Schema) -> None:
    """Refuse subschemas that apply themselves, or too many others, to the same value: a validator would not end."""
    heights: dict[str, int] = {}  # the longest chain of subschemas of one value, from each subschema on
    entered: set[str] = set()
    stack = list(schema.pointers)
    while stack:
        at = stack[-1]
        inner = () if at in heights else tuple(_same_value(schema, at))
        waiting = [one for one in inner if one not in heights]
        if waiting and at in entered:
            raise SchemaError(f"At {at or 'its top'} the schema asks for itself without end; cut the circle.")
        if waiting:
            entered.add(at)
            stack += waiting
            continue
        stack.pop()
        heights.setdefault(at, 1 + max((heights[one] for one in inner), default=0))
        if heights[at] > MAX_NESTED:
            raise SchemaError(f"At {at} more than {MAX_NESTED} subschemas of one value are nested; use fewer.")


def _same_value(schema: Schema, at: str) -> Iterator[str]:
    """The subschemas that a subschema applies to its own value."""
    node = schema.words(at)
    for word in ("$ref", "not", "if", "then", "else"):
        if word in node:
            yield node[word]
    for word in ("allOf", "anyOf", "oneOf"):
        yield from node.get(word, ())
    yield from node.get("dependentSchemas", {}).values()
