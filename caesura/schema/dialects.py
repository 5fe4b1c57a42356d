"""The keywords of JSON Schema, by dialect: drafts 4, 6 and 7, 2019-09 and 2020-12."""

import json
import re
from collections.abc import Mapping
from typing import Any

from caesura.wire import Impossible

Value = Any  # a JSON value
SchemaNode = Mapping[str, Any] | bool

DIALECTS = {
    "json-schema.org/draft/2020-12/schema": 2020,
    "json-schema.org/draft/2019-09/schema": 2019,
    "json-schema.org/draft-07/schema": 7,
    "json-schema.org/draft-06/schema": 6,
    "json-schema.org/draft-04/schema": 4,
}
SINGLE = {  # keywords that hold one subschema
    *("additionalProperties", "propertyNames", "unevaluatedProperties"),
    *("items", "additionalItems", "contains", "unevaluatedItems"),
    *("not", "if", "then", "else"),
}
LISTS = {"allOf", "anyOf", "oneOf", "prefixItems"}  # a list of subschemas
MAPS = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}  # some by name
SINCE = {  # the first dialect of a keyword
    **dict.fromkeys(("const", "contains", "propertyNames"), 6),
    **dict.fromkeys(("if", "then", "else"), 7),
    **dict.fromkeys(("$recursiveRef", "dependentRequired", "dependentSchemas", "minContains", "maxContains"), 2019),
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), 2019),
    **dict.fromkeys(("$dynamicRef", "prefixItems"), 2020),
}
UNTIL = {"dependencies": 7, "additionalItems": 2019, "$recursiveRef": 2019}  # the last dialect of a keyword


class SchemaError(Impossible):
    """The schema cannot be used: one sentence with the next step."""


def dialect_of(document: Value) -> int:
    """The dialect that `$schema` names; 2020-12 without it. Raises SchemaError."""
    name = document.get("$schema") if isinstance(document, dict) else None
    if name is None:
        return 2020
    found = DIALECTS.get(re.sub("^https?://|#$", "", name)) if isinstance(name, str) else None
    if found is None:
        raise SchemaError(f'The dialect of the schema, {json.dumps(name)}, is not known; set "$schema" to 2020-12.')
    return found


def knows(dialect: int, word: str) -> bool:
    """True if a dialect has the keyword."""
    return SINCE.get(word, 0) <= dialect <= UNTIL.get(word, 9999)
