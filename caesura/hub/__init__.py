"""Downloads models from a hub into the cache that all tools of the hub share: safetensors, configuration and tokenizer
files, never pickles or code. No other module contacts a machine that the user has not paired.

Nothing that a hub says becomes part of a path: names of files are from a fixed list, a commit and a hash are 40 or 64
hexadecimal digits. A file is put in place when it is whole and its hash is right, under that hash.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from caesura.characters import shown
from caesura.hub import cache, requests
from caesura.hub.requests import AGAIN as AGAIN
from caesura.hub.requests import HubError as HubError

CONFIG = "config.json"
SMALL = (
    *(CONFIG, "generation_config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
)
WHOLE = "model.safetensors"
SHARD = re.compile(r"model-[0-9]{5,6}-of-[0-9]{5,6}\.safetensors")
MAX_SMALL = 64 << 20  # bytes of a file that is not weights
MAX_LICENCE = 60  # characters

Size = Annotated[int, Meta(ge=0, le=2**53)]
Hexadecimal = r"\A[0-9a-f]{%d}\Z"  # not `$`, which a line break may follow


class _Large(msgspec.Struct):
    sha256: Annotated[str, Meta(pattern=Hexadecimal % 64)]


class _Listed(msgspec.Struct):
    """A file. `blobId` is git's hash of it; for a large file, git's hash of a pointer to it."""

    rfilename: str
    size: Size | None = None
    blobId: Annotated[str, Meta(pattern=Hexadecimal % 40)] | None = None  # noqa: N815 (the hub's name)
    lfs: _Large | None = None


class _Counted(msgspec.Struct):
    total: Size = 0


class _Card(msgspec.Struct):
    license: Any = None
    license_name: Any = None


class _Listing(msgspec.Struct):
    """A hub's description of a model at one commit (`/api/models/ORG/NAME/revision/REV?blobs=true`)."""

    sha: Annotated[str, Meta(pattern=Hexadecimal % 40)]
    siblings: list[_Listed]
    cardData: _Card | None = None  # noqa: N815
    safetensors: _Counted | None = None


@dataclass(frozen=True)
class HubFile:
    """`hash` names it in the cache: the sha256 of a large file, git's hash of a small one; empty if it is not known, as
    in a cache on a system without links."""

    name: str
    size: int  # bytes
    hash: str


@dataclass(frozen=True)
class Repository:
    """A model at one commit, and the files of it that Caesura uses."""

    name: str  # ORG/NAME
    commit: str
    licence: str  # empty where none is stated
    parameters: int  # 0 where the hub has not counted them
    files: tuple[HubFile, ...]

    @property
    def page(self) -> str:
        return f"{requests.address()}/{self.name}"

    @property
    def folder(self) -> Path:
        """Its files in the cache."""
        return cache.snapshot(self.name, self.commit)

    @property
    def weights(self) -> int:
        """Bytes."""
        return sum(file.size for file in self.files if file.name not in SMALL)

    @property
    def missing(self) -> int:
        """Bytes to download."""
        return sum(file.size - _present(self, file) for file in self.files)


def find(name: str, revision: str | None) -> Repository:
    """Look up a model in the hub, or in the cache if HF_HUB_OFFLINE is set. Raises HubError."""
    if not cache.is_name(name):
        raise HubError(f"{shown(name, 100)!r} is not a valid name of a model on a hub; give it as ORG/NAME.")
    if revision is not None and not cache.is_revision(revision):
        raise HubError(f"{shown(revision, 100)!r} cannot be a revision; leave out `@` and it for the newest.")
    if requests.offline():
        return _cached(name, revision)
    listing = _listing(name, revision)
    parameters = listing.safetensors.total if listing.safetensors else 0
    return Repository(name, listing.sha, _licence(listing.cardData), parameters, _taken(name, _offered(name, listing)))


def _listing(name: str, revision: str | None) -> _Listing:
    data = requests.listing(name, revision)
    try:
        return msgspec.json.decode(data, type=_Listing)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HubError(
            f"{requests.address()} sent a list of the files of {name} that cannot be read; check HF_ENDPOINT."
        ) from error


def _offered(name: str, listing: _Listing) -> list[HubFile]:
    """The files that could be used. Raises HubError."""
    found = dict[str, HubFile]()
    for one in listing.siblings:
        if not (one.rfilename in SMALL or one.rfilename == WHOLE or SHARD.fullmatch(one.rfilename)):
            continue
        digest = one.lfs.sha256 if one.lfs else one.blobId
        if one.size is None or digest is None or one.rfilename in found:
            raise HubError(
                f"{requests.address()} does not say which {one.rfilename} of {name} is meant: its list has no size, no "
                "hash or two of them. Choose another hub by HF_ENDPOINT."
            )
        if one.rfilename in SMALL and one.size > MAX_SMALL:
            raise HubError(f"{one.rfilename} of {name} is larger than {MAX_SMALL >> 20} MiB; choose another model.")
        found[one.rfilename] = HubFile(one.rfilename, one.size, digest)
    return list(found.values())


def _cached(name: str, revision: str | None) -> Repository:
    """A model in the cache, which has no licences. Raises HubError."""
    with cache.sentences():
        commit = cache.commit_of(name, revision)
        if commit is None:
            raise HubError(f"{name} is not in {cache.root()}, and HF_HUB_OFFLINE is set; unset it to download.")
        files = [HubFile(one.name, one.stat().st_size, cache.hash_of(one)) for one in cache.files(name, commit)]
    return Repository(name, commit, "", 0, _taken(name, files))


def _taken(name: str, offered: list[HubFile]) -> tuple[HubFile, ...]:
    """The files to use. Raises HubError without weights or configuration."""
    names = {file.name for file in offered}
    weights = {WHOLE} & names or set(filter(SHARD.fullmatch, names))
    if not weights or CONFIG not in names:
        raise HubError(
            f"{name} has no {CONFIG} with safetensors, the only form that Caesura loads; choose another model."
        )
    return tuple(file for file in offered if file.name in weights or file.name in SMALL)


def _licence(card: _Card | None) -> str:
    if card is None:
        return ""
    said = card.license_name if card.license == "other" and card.license_name else card.license
    several = [one for one in said if isinstance(one, str)] if isinstance(said, list) else [said]
    return shown(", ".join(one for one in several if isinstance(one, str)), MAX_LICENCE)


def fetch(model: Repository, file: HubFile, seen: Callable[[int], None]) -> str:
    """Download a file into the cache unless it is there. Returns its sha256. `seen` gets the number of bytes so far.
    Raises HubError."""
    with cache.sentences():
        place = model.folder / file.name
        if place.exists():
            if (digest := cache.checked(place, file.hash)) is None:
                raise HubError(f"{place.resolve()} is damaged: delete it and run the same command again.")
        else:
            digest = _downloaded(model, file, seen)
            cache.put(model.name, file.hash, place)
    seen(file.size)
    return digest


def _downloaded(model: Repository, file: HubFile, seen: Callable[[int], None]) -> str:
    """Download a file into the cache, under its hash. Returns its sha256."""
    blob = cache.blob(model.name, file.hash)
    if blob.exists() and (digest := cache.checked(blob, file.hash)):
        return digest
    with cache.partial(model.name, file.hash) as partial:
        requests.body(model.name, model.commit, file.name, file.size, partial, seen)
    if (digest := cache.complete(model.name, file.hash)) is None:
        raise HubError(f"{file.name} of {model.name} arrived damaged (its hash is wrong); run the same command again.")
    return digest


def remember(model: Repository, revision: str | None) -> None:
    """Note that a revision is this commit, for use without a network. Raises HubError."""
    with cache.sentences():
        cache.remember(model.name, revision, model.commit)


def _present(model: Repository, file: HubFile) -> int:
    """Bytes of a file in the cache."""
    if (model.folder / file.name).exists():
        return file.size
    return min(file.size, cache.present(model.name, file.hash))
