"""The reader's check of a TOML or YAML document. It finds keys that stand twice, which the syntax tree allows. Pure."""

import tomllib

MAX_READ = 30_000  # code points of a document: 15 to 30 ms
_DEPTH = 100  # collections in each other: deeper ones take libyaml quadratic time
_MERGE = "<<"  # may stand more than once


def reads(text: str, form: str) -> bool:
    """True if a document of the format "toml" or "yaml" can be read, or is too long to try."""
    if len(text) > MAX_READ:
        return True
    return _reads_toml(text) if form == "toml" else _reads_yaml(text)


def _reads_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except (ValueError, RecursionError):  # also for a number that Python cannot read
        return False
    return True


def _reads_yaml(text: str) -> bool:
    """True if libyaml can parse the documents, and no mapping has a scalar key twice. Tags and aliases are not looked
    up, since applications have their own. True without libyaml: in Python alone it would take too long."""
    import yaml  # at the first use: it takes 20 ms

    if not yaml.__with_libyaml__:
        return True
    open_nodes: list[_Keys | None] = []  # None for a sequence
    try:
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            if isinstance(event, yaml.CollectionEndEvent):
                open_nodes.pop()
            elif isinstance(event, yaml.NodeEvent):
                scalar = event.value if isinstance(event, yaml.ScalarEvent) else None
                if open_nodes and (keys := open_nodes[-1]) and keys.is_second(scalar):
                    return False
                if isinstance(event, yaml.CollectionStartEvent):
                    open_nodes.append(_Keys() if isinstance(event, yaml.MappingStartEvent) else None)
                    if len(open_nodes) > _DEPTH:
                        return False
    except (yaml.YAMLError, UnicodeError):
        return False
    return True


class _Keys:
    """The keys of a mapping whose nodes are told one after another: a key, its value, the next key."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._is_value = True

    def is_second(self, scalar: str | None) -> bool:
        """True if the next node is a key that the mapping has already. `scalar` is None for a node of another kind."""
        self._is_value = not self._is_value
        if self._is_value or scalar is None or scalar == _MERGE:
            return False
        if scalar in self._known:
            return True
        self._known.add(scalar)
        return False
