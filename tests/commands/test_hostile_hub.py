"""A hostile hub, or a hostile machine between it and the user: nothing of the user's is touched, memory and disk stay
bounded, and the user gets one sentence. The attacks are data, one for each thing that a hub can say."""

import gzip
import re
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub import constants

from caesura import paths
from caesura.hub import MAX_SMALL, HubError, cache, find, requests

from ..support.processes import hub as hubs
from ..support.processes.hub import COMMIT, NAME, TOKEN, Hub, Reply, Run

ENDLESS = repeat(b"x" * 65_536)
ELSEWHERE = ("../../../home/.bash_profile", "/home/.bash_profile", "..\\..\\.bash_profile", "%2e%2e/.bashrc")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "PAUSE_S", 0.0)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Next to the cache, with the file that is after."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".bash_profile").write_text("mine")
    return tmp_path


def in_list(**changes: Any) -> Callable[[Hub], None]:
    def attack(hub: Hub) -> None:
        hub.change = lambda listing: listing | changes

    return attack


def of_file(name: str, **changes: Any) -> Callable[[Hub], None]:
    def attack(hub: Hub) -> None:
        def changed(listing: dict[str, Any]) -> dict[str, Any]:
            files = [one | changes if one["rfilename"] == name else one for one in listing["siblings"]]
            return listing | {"siblings": files}

        hub.change = changed

    return attack


def answering(part: str, reply: Callable[[], Reply]) -> Callable[[Hub], None]:
    def attack(hub: Hub) -> None:
        hub.replies[part] = reply()

    return attack


def dripping() -> Iterator[bytes]:
    while True:
        time.sleep(0.02)
        yield b" "


UNREADABLE = r"http\S+ sent a list of the files of org/tiny that cannot be read; check HF_ENDPOINT\."
UNCLEAR = r"http\S+ does not say which config\.json of org/tiny is meant: .*"
DAMAGED = r"config\.json of org/tiny arrived damaged \(its hash is wrong\); run the same command again\."
TOO_LONG = r"http\S+ sends more of \S+ of org/tiny than the [\d,]+ bytes that it has stated; nothing of it is kept\..*"
TOO_SHORT = r"http\S+ sends less of config\.json of org/tiny than it has stated; .*"

ATTACKS: dict[str, tuple[Callable[[Hub], None], str]] = {
    # What it says of the commit
    **{
        f"commit {text!r}": (in_list(sha=text), UNREADABLE)
        for text in (*ELSEWHERE, COMMIT + "\n", COMMIT.upper(), "", 7)
    },
    "commit in digits of another script": (in_list(sha="\u0661" * 40), UNREADABLE),
    # of files
    **{f"git's hash {text!r}": (of_file("config.json", blobId=text), UNREADABLE) for text in ELSEWHERE},
    **{f"sha256 {text!r}": (of_file("config.json", lfs={"sha256": text}), UNREADABLE) for text in ELSEWHERE},
    **{f"size {size!r}": (of_file("config.json", size=size), UNREADABLE) for size in (-1, 1.5, "1", 2**60, [])},
    "no size": (of_file("config.json", size=None), UNCLEAR),
    "no hash": (of_file("config.json", blobId=None), UNCLEAR),
    "a file twice": (
        lambda hub: setattr(hub, "change", lambda listing: listing | {"siblings": listing["siblings"] * 2}),
        UNCLEAR,
    ),
    "a small file of a terabyte": (
        of_file("config.json", size=10**12),
        rf"config\.json of org/tiny is larger than {MAX_SMALL >> 20} MiB; choose another model\.",
    ),
    "weights that fit no disk": (of_file("model.safetensors", size=2**53), r"The download takes 9007199\.3 GB, .*"),
    # The list itself
    "endless list": (
        answering("tiny", lambda: Reply(chunks=ENDLESS)),
        r"http\S+ sends a list of more than 8 MiB; check HF_ENDPOINT\.",
    ),
    "deep list": (answering("tiny", lambda: Reply(chunks=[b'{"sha":' + b"[" * 10**6])), UNREADABLE),
    "no JSON": (answering("tiny", lambda: Reply(chunks=[b"<html>\x1b[2J"])), UNREADABLE),
    "no UTF-8": (answering("tiny", lambda: Reply(chunks=[b'{"sha":"\xff"}'])), UNREADABLE),
    "empty list": (answering("tiny", lambda: Reply()), UNREADABLE),
    "packed list": (
        answering("tiny", lambda: Reply(headers={"Content-Encoding": "gzip"}, chunks=[gzip.compress(b"0" * 10**8)])),
        r"http\S+ compresses answers though it was asked not to; choose another one by HF_ENDPOINT\.",
    ),
    "an error in a terminal's language": (
        answering("tiny", lambda: Reply(500, {"X-Error-Message": "\x1b]0;pwn\x07", "X-Error-Code": "\x1b[31m"})),
        r"http\S+ answered 500 for org/tiny; wait a moment, .*",
    ),
    # Bodies
    "endless file": (answering("config.json", lambda: Reply(chunks=ENDLESS)), TOO_LONG),
    "endless weights": (answering("model.safetensors", lambda: Reply(chunks=ENDLESS)), TOO_LONG),
    "another file": (
        lambda hub: hub.replies.update(
            {"config.json": Reply(chunks=[b"x" * (hub.folder / "config.json").stat().st_size])}
        ),
        DAMAGED,
    ),
    "a file that ends early": (answering("config.json", lambda: Reply()), TOO_SHORT),
    "a packed file": (
        answering("config.json", lambda: Reply(headers={"Content-Encoding": "gzip"}, chunks=[gzip.compress(b"{}")])),
        r"http\S+ compresses answers .*",
    ),
    "a part that nobody asked for": (
        lambda hub: hub.replies.update(
            {"config.json": Reply(206, chunks=[b"x" * (hub.folder / "config.json").stat().st_size])}
        ),
        DAMAGED,
    ),
    # Redirects
    "a list elsewhere": (
        answering("tiny", lambda: Reply(302, {"Location": "http://127.0.0.2:1/api/models/org/tiny"})),
        r"http\S+ sends its list from http://127\.0\.0\.2:1, another host; if you trust that host, set HF_ENDPOINT .*",
    ),
    "a file that is not there": (
        answering("config.json", lambda: Reply(302, {"Location": "http://127.0.0.2:1/config.json"})),
        r"http\S+ redirects to 127\.0\.0\.2, which cannot be reached; check the network and HF_ENDPOINT, .*",
    ),
    **{
        f"redirect to {place!r}": (
            answering("config.json", lambda place=place: Reply(302, {"Location": place})),  # type: ignore[misc]
            r"http\S+ redirects .* HF_ENDPOINT\.",
        )
        for place in (
            "file:///etc/passwd",
            "ftp://127.0.0.1/",
            "http://a:b@127.0.0.1/",
            "http://127.0.0.1:x/",
            "config.json",
        )
    },
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_gets_one_sentence_and_no_file(name: str, hub: Hub, run: Run, home: Path) -> None:
    attack, sentence = ATTACKS[name]
    attack(hub)
    code, out, err = run("pull", NAME)
    assert (code, out) == (1, "")
    last = err.splitlines()[-1]
    assert last.isprintable()
    assert re.fullmatch(f"caesura: {sentence}", last), last
    assert list(paths.models().iterdir()) == []
    assert (home / "home" / ".bash_profile").read_text() == "mine"
    assert foreign(home) == []
    assert sum(file.stat().st_size for file in (home / "hf").rglob("*") if not file.is_symlink()) < 2_000_000


def foreign(home: Path) -> list[Path]:
    """Files of the cache whose names are not ours, and links that lead out of it."""
    files = [file for file in (home / "hf").rglob("*") if not file.is_dir()]
    return [
        file
        for file in files
        if not (cache.HASH.fullmatch(file.name.removesuffix(".incomplete")) or file.parts[-2:] == ("refs", "main"))
        and not (file.is_symlink() and file.resolve().is_relative_to(home / "hf"))
    ]


@pytest.mark.parametrize("header", ["ETag", "X-Linked-ETag", "X-Repo-Commit", "Content-Disposition", "Set-Cookie"])
@pytest.mark.parametrize("text", ELSEWHERE)
def test_no_header_becomes_part_of_a_path(header: str, text: str, hub: Hub, run: Run, home: Path) -> None:
    for file in hub.folder.iterdir():
        hub.replies[file.name] = Reply(headers={header: text}, chunks=[file.read_bytes()])
    assert run("pull", NAME)[0] == 0
    assert foreign(home) == []
    assert (home / "home" / ".bash_profile").read_text() == "mine"


@pytest.mark.parametrize("text", [*ELSEWHERE, "config.json/../../x", "model-00001-of-00002.safetensors/../x", "\0"])
def test_no_name_of_a_file_becomes_part_of_a_path(text: str, hub: Hub, run: Run, home: Path) -> None:
    hub.change = lambda about: (
        about | {"siblings": [{"rfilename": text, "size": 1, "blobId": "0" * 40}, *about["siblings"]]}
    )
    assert run("pull", NAME)[0] == 0
    assert sorted(hub.got()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert foreign(home) == []


def test_a_list_that_drips_ends(hub: Hub, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "LIST_S", 0.1)
    hub.replies["tiny"] = Reply(chunks=dripping())
    assert "for a list; run the same command again; it resumes." in run("pull", NAME)[2]


def test_a_mirror_may_keep_its_files_elsewhere_and_gets_no_token_there(
    hub: Hub, run: Run, monkeypatch: pytest.MonkeyPatch, repository: Path
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with hubs.serve(repository) as other:
        for file in hub.folder.iterdir():
            hub.replies[file.name] = Reply(302, {"Location": f"{other.address}/{NAME}/resolve/main/{file.name}"})
        assert run("pull", NAME)[0] == 0
        assert sorted(other.got()) == ["config.json", "model.safetensors", "tokenizer.json"]
        assert other.tokens == {""}
    assert hub.tokens == {f"Bearer {TOKEN}"}


@pytest.mark.parametrize("revision", ["../../x", "/etc/x", "a//b", "", "x" * 201, "a\\b", "\x1b[2J", "a:b", ".git"])
def test_a_revision_that_is_no_name_is_refused(revision: str, hub: Hub) -> None:
    with pytest.raises(HubError, match="cannot be a revision"):
        find(NAME, revision)
    assert hub.requests == []


@pytest.mark.parametrize("text", [*ELSEWHERE, "..", "\0" * 40, "f" * 40, "f" * 10**6])
def test_a_damaged_cache_leads_nowhere(
    text: str, hub: Hub, run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("pull", NAME)[0] == 0
    [ref] = (home / "hf").rglob("refs/main")
    ref.write_text(text)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert re.fullmatch(r"caesura: org/tiny is not in \S+, and HF_HUB_OFFLINE is set; .*\n", run("pull", NAME)[2])


# Hubs that are not on this machine: no request leaves it


PUBLIC = "https://hub.example"


class Received:
    """A file that grows in memory."""

    size = 0

    def append(self, chunk: bytes) -> None:
        self.size += len(chunk)

    def clear(self) -> None:
        self.size = 0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[httpx2.Request]]:
    """Puts a hub at an address that gives these answers, and then 404. The requests that it gets."""

    def put(hub: str, *answers: httpx2.Response) -> list[httpx2.Request]:
        requests, left = list[httpx2.Request](), list(answers)

        def send(client: httpx2.Client, request: httpx2.Request, **_: object) -> httpx2.Response:
            requests.append(request)
            return left.pop(0) if left else httpx2.Response(404)

        monkeypatch.setattr(httpx2.Client, "send", send)
        monkeypatch.setattr(constants, "ENDPOINT", hub)
        return requests

    return put


@pytest.mark.parametrize(
    ("hub", "where", "sentence"),
    [
        (PUBLIC, "https://cdn.example/file", ""),
        (PUBLIC, "/api/resolve-cache/file", ""),
        ("http://mirror.example", "https://cdn.example/file", ""),
        ("https://somebody:secret@mirror.example", "/api/resolve-cache/file", ""),
        ("http://127.0.0.1:8000", "http://127.0.0.1:9000/file", ""),
        (PUBLIC, "http://hub.example/file", "which Caesura does not follow"),
        (PUBLIC, "https://somebody:secret@cdn.example/file", "which Caesura does not follow"),
        *(
            (PUBLIC, f"https://{host}/file", "in a private network")
            for host in (
                *("127.0.0.1", "127.1", "2130706433", "0x7f.1", "0.0.0.0", "[::]", "[::1]", "[::ffff:10.0.0.1]"),
                *("localhost", "localhost.", "x.localhost", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
            )
        ),
    ],
)
def test_a_file_is_redirected_to_public_hosts(
    hub: str, where: str, sentence: str, asked: Callable[..., list[httpx2.Request]]
) -> None:
    requests_ = asked(hub, httpx2.Response(302, headers={"location": where}))
    with pytest.raises(HubError, match=sentence or "answered 404"):
        requests.body(NAME, COMMIT, "config.json", 2, Received(), lambda size: None)
    assert len(requests_) == (1 if sentence else 2)


@pytest.mark.parametrize(
    ("hub", "sent"),
    [(PUBLIC, f"Bearer {TOKEN}"), ("http://mirror.example", None), ("http://192.168.1.2:8000", f"Bearer {TOKEN}")],
)
def test_a_token_crosses_a_network_only_encrypted(
    hub: str, sent: str | None, asked: Callable[..., list[httpx2.Request]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    seen = asked(hub)
    for switched_off in (False, True):
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", switched_off)
        with pytest.raises(HubError, match="has no model"):
            requests.listing(NAME, None)
    assert [request.headers.get("authorization") for request in seen] == [sent, None]


def test_a_hub_that_begins_again_each_time_is_given_up(asked: Callable[..., list[httpx2.Request]]) -> None:
    sizes = [5, 3, 4, 5, 3, 4, 5]  # the second is more than the first, but not more than ever
    seen = asked(PUBLIC, *(httpx2.Response(200, stream=httpx2.ByteStream(b"x" * size)) for size in sizes))
    with pytest.raises(HubError, match=r"sends less of config\.json"):
        requests.body(NAME, COMMIT, "config.json", 9, Received(), lambda size: None)
    assert len(seen) == 1 + requests.ATTEMPTS


def test_a_page_of_a_proxy_costs_nothing_of_what_is_there(asked: Callable[..., list[httpx2.Request]]) -> None:
    there = Received()
    there.append(b"x" * 5)
    asked(PUBLIC, httpx2.Response(200, content=b"<html>log in"))
    with pytest.raises(HubError, match="another file"):
        requests.body(NAME, COMMIT, "config.json", 9, there, lambda size: None)
    assert there.size == 5


@pytest.mark.parametrize(
    ("status", "message", "sentence"),
    [
        (401, "", "has no model org/tiny; check the name, or set HF_TOKEN if it is private"),
        (404, "", "has no model org/tiny"),
        (401, "Invalid credentials in Authorization header", "answered 401 for org/tiny; check HF_TOKEN"),
    ],
)
def test_a_hub_that_gives_no_code_is_understood(
    status: int, message: str, sentence: str, asked: Callable[..., list[httpx2.Request]]
) -> None:
    asked(PUBLIC, httpx2.Response(status, headers={"x-error-message": message}))
    with pytest.raises(HubError, match=sentence):
        requests.listing(NAME, None)
