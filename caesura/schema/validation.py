"""A `jsonschema` validator with keywords of our own, which are exact and always end.

Patterns are matched with automata, because Python's engine may take exponential time. Numbers are compared as they are
written, and items of an array all at once.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from caesura.automata.dfa import Dfa, TooLarge, Unsupported
from caesura.automata.regex import matching
from caesura.recent import remembered
from caesura.schema.dialects import Value

PATTERNS = 8 << 20  # bytes of automata kept: a document is checked against all patterns of its schema in turn
VALIDATORS = {
    2020: "Draft202012Validator",
    2019: "Draft201909Validator",
    7: "Draft7Validator",
    6: "Draft6Validator",
    4: "Draft4Validator",
}


def validator_class(dialect: int) -> Any:
    """The validator of the library."""
    import jsonschema

    return getattr(jsonschema, VALIDATORS[dialect])


def validator(document: Value, dialect: int) -> Any:
    """A validator of a schema document. `format` is an annotation. A pattern that has no automaton matches nothing."""
    from jsonschema import validators
    from jsonschema_specifications import REGISTRY

    ours = {"pattern": _pattern, "patternProperties": _pattern_properties, "additionalProperties": _additional}
    ours |= {"multipleOf": _multiple_of, "uniqueItems": _unique}
    return validators.extend(validator_class(dialect), ours)(document, registry=REGISTRY)


@remembered(PATTERNS, lambda found, _: found.nbytes if found else 0)
def automaton(pattern: str) -> Dfa | None:
    """The automaton of an ECMA-262 pattern; None where there is none."""
    try:
        return matching(pattern)
    except (Unsupported, TooLarge):
        return None


def matches(pattern: str, text: str) -> bool:
    """True if a text contains a match of an ECMA-262 pattern; always true for a pattern without an automaton."""
    found = automaton(pattern)
    return found is None or found.accepts(text)


def exact(number: float) -> Fraction:
    """A number of a document as it is written there, within the precision of a float."""
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


# Keywords: each yields the errors of an instance


def _pattern(validator: Any, pattern: str, instance: Value, schema: Value) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(instance, str) and not (automaton(pattern) and matches(pattern, instance)):
        yield ValidationError(f"{instance!r} does not match {pattern!r}, as far as that can be told")


def _additional(validator: Any, extra: Value, instance: Value, schema: dict[str, Any]) -> Iterator[Any]:
    from jsonschema import ValidationError

    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key, value in instance.items() if isinstance(instance, dict) else ():
        if key in known or any(matches(pattern, key) for pattern in patterns):
            continue
        if extra is False:
            yield ValidationError(f"The key {key!r} is not allowed")
        else:
            yield from validator.descend(value, extra, path=key)


def _pattern_properties(validator: Any, patterns: dict[str, Value], instance: Value, schema: Value) -> Iterator[Any]:
    if isinstance(instance, dict):
        for pattern, part in patterns.items():
            for key, value in instance.items():
                if matches(pattern, key):
                    yield from validator.descend(value, part, path=key, schema_path=pattern)


def _unique(validator: Any, unique: bool, instance: Value, schema: Value) -> Iterator[Any]:
    """In linear time: the library compares every two items."""
    from jsonschema import ValidationError

    if unique and isinstance(instance, list) and len(set(map(_canonical, instance))) < len(instance):
        yield ValidationError("Two items of an array are the same")


def _canonical(value: Value) -> Any:
    """Equal for values that are the same in JSON."""
    if isinstance(value, dict):
        return ("object", frozenset((key, _canonical(one)) for key, one in value.items()))
    if isinstance(value, list):
        return ("array", tuple(map(_canonical, value)))
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return ("number", exact(value)) if number else (type(value), value)


def _multiple_of(validator: Any, step: float, instance: Value, schema: Value) -> Iterator[Any]:
    from jsonschema import ValidationError

    if validator.is_type(instance, "number") and exact(instance) % exact(step):
        yield ValidationError(f"{instance!r} is not a multiple of {step!r}")
