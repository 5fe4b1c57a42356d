"""Find the JSON schema of a document: by its own `$schema`, else by the user's settings. Nothing is fetched, and a
document can name no file outside of the workspace's folders. Reads files, so it runs on a thread.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

import msgspec

from caesura.schema.dialects import DIALECTS, SchemaError
from caesura.schema.document import Schema
from caesura.schema.reader import MAX_BYTES, read_schema
from caesura.server.context.files import TextFiles
from caesura.server.context.globs import Globs, TooMany
from caesura.server.options import SchemaFor
from caesura.server.text.json import member
from caesura.server.text.workspace import path_of

CACHED = 4 * MAX_BYTES  # bytes of schemas cached as text
HEAD = 65_536  # code points at the start of a document that are searched for `$schema`

_BOM = "\ufeff"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # two letters or more, since "c:" is a drive


@dataclass(frozen=True)
class Found:
    """A document's schema, if it has one; `note` says why a schema that it names is not used."""

    schema: Schema | None = None
    note: str = ""


class SchemaFiles:
    """`folders` are the paths of the workspace's folders, `settings` the user's schemas. In an untrusted workspace no
    file is read. A file for which `withholds` is true is refused, even if the user named it."""

    def __init__(
        self,
        folders: Sequence[str] = (),
        settings: Sequence[SchemaFor] = (),
        *,
        trusted: bool = True,
        withholds: Callable[[Path], bool] = lambda real: False,
    ) -> None:
        self._folders = [Path(folder) for folder in folders if Path(folder).is_absolute()]
        self._settings = settings
        self._globs = [_globs(one.file_match) for one in settings]
        self._trusted = trusted
        self._withholds = withholds
        self._texts = TextFiles(CACHED, MAX_BYTES)

    def __repr__(self) -> str:
        return f"<SchemaFiles of {len(self._folders)} folders, {len(self._settings)} settings>"

    @property
    def problems(self) -> list[str]:
        """A sentence for each setting whose globs could not be read."""
        bad = [one for one, globs in zip(self._settings, self._globs, strict=True) if globs is None]
        return [
            f"The globs {list(one.file_match)} of a schema are not in gitignore syntax; correct them." for one in bad
        ]

    def find(self, uri: str, text: str, given: str | None = None) -> Found:
        """The schema of a document: the file `given`, else the one that the document or the settings name. Raises
        SchemaError if the user's schema cannot be used, or if the file found is no schema."""
        if given is not None:
            return Found(self._of_user(given))
        named, note = _string(member(text, "$schema", HEAD)), ""
        if named:
            schema, note = self._of_document(uri, named)
            if schema is not None:
                return Found(schema)
        for one, globs in zip(self._settings, self._globs, strict=True):
            if globs is not None and globs.match(self._label(uri)):
                return Found(self._set(one))
        return Found(None, note)

    def _of_document(self, uri: str, named: str) -> tuple[Schema | None, str]:
        """The schema that a document names as its `$schema`; if there is none, a sentence that says why."""
        bare = named.partition("#")[0]
        for one in self._settings:
            if one.url and one.url.partition("#")[0] == bare:
                return self._set(one), ""
        if bare.partition("://")[2] in DIALECTS:
            return read_schema(msgspec.json.encode({"$schema": named, "$ref": bare}).decode()), ""
        if _SCHEME.match(bare) and not bare.startswith("file:"):
            return None, f"The schema {named} is not fetched; give it a file in the setting 'schemas'."
        try:
            path = Path(os.path.normpath(Path(path_of(uri)).parent / (path_of(bare) or unquote(bare))))
            path = path.resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            return None, f"The schema {named} does not exist; correct `$schema`."
        if not any(path.is_relative_to(folder.resolve()) for folder in self._folders):
            return None, f"The schema {named} lies outside of the workspace; name it in the setting 'schemas'."
        if not self._trusted:
            return None, f"The schema {named} is not read, since the workspace is not trusted."
        return self._load(path, named), ""

    def _set(self, one: SchemaFor) -> Schema:
        """The schema that a setting gives or names."""
        if isinstance(one.schema, Mapping | bool):
            return read_schema(msgspec.json.encode(one.schema).decode())
        return self._of_user(one.schema if isinstance(one.schema, str) else one.url)

    def _of_user(self, name: str) -> Schema:
        """The schema in a file that the user names: a path, also relative to a folder of the workspace, or a `file:`
        URI."""
        if _SCHEME.match(name) and not name.startswith("file:"):
            raise SchemaError(f"The schema {name} is not fetched; name a file that holds it.")
        if not self._trusted:
            raise SchemaError(f"The schema {name} is not read, since the workspace is not trusted.")
        named = Path(path_of(name) or name)
        for path in [named] if named.is_absolute() else [folder / named for folder in self._folders]:
            try:
                real = path.resolve(strict=True)
            except (OSError, ValueError, RuntimeError):
                continue
            return self._load(real, name)
        raise SchemaError(f"The schema {name} does not exist; correct its path.")

    def _load(self, path: Path, name: str) -> Schema:
        if self._withholds(path):
            raise SchemaError(f"The schema {name} may not be sent to another machine; see `caesura pair`.")
        try:
            text = self._texts.read(path)
        except OSError as error:
            raise SchemaError(f"The schema {name} cannot be read: {error.strerror or error}.") from None
        except ValueError:
            raise SchemaError(f"The schema {name} is not UTF-8 text; save it as such.") from None
        if text is None:
            raise SchemaError(f"The schema {name} is larger than 1 MiB, or no file; use a smaller one.")
        return read_schema(text.removeprefix(_BOM))

    def _label(self, uri: str) -> str:
        """The path of a document in its workspace folder, for globs; its whole path if it lies in none."""
        path = PurePosixPath(path_of(uri))
        inside = [folder for folder in self._folders if path.is_relative_to(folder)]
        return str(path.relative_to(max(inside, key=lambda folder: len(folder.parts))) if inside else path)


def _globs(patterns: Sequence[str]) -> Globs | None:
    try:
        found = Globs(patterns)
    except TooMany:
        return None
    return None if found.wrong else found


def _string(literal: str) -> str:
    try:
        return msgspec.json.decode(literal, type=str)
    except msgspec.DecodeError:
        return ""
