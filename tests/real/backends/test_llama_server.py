"""A real llama-server with the weights of `coder` behind the real server, in a real Neovim."""

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from caesura import wire
from caesura.client.backend import job_id
from caesura.client.backends.jobs import HttpBackend
from caesura.client.backends.kinds import backend
from caesura.client.backends.named import NamedService
from caesura.ipc import rendezvous

from ..neovim import PLUGIN, Neovim, neovim
from .llama_server import LlamaServer, missing, running, starting, wait
from .relay import Passed, Relay

pytestmark = pytest.mark.real

CAESURA = [sys.executable, "-P", "-m", "caesura"]
STACK = """class Stack:
    def push(self, item):
        self.items.append(item)

    def pop(self):


    def __len__(self):
        return len(self.items)
"""
LONG = "".join(f"def add_{n}(left, right):\n    return left + right + {n}\n\n\n" for n in range(40))
COLORS = "for _, name in ipairs(...) do vim.api.nvim_set_hl(0, name, { fg = 0x808080 }) end"
STATUS = "return require('caesura.status').get()"
READY_S, LEAVES_S, DEADLINE_MS = 30.0, 10.0, 120_000.0
CLOSES_MS = 50.0  # 5 ms on a quiet machine: bench/backends.py


@pytest.fixture(scope="module")
def server() -> Iterator[LlamaServer]:
    if said := missing():
        pytest.fail(said, pytrace=False)
    with running() as found:
        yield found


@pytest.fixture
def relay(server: LlamaServer) -> Iterator[Relay]:
    with Relay(server.port) as found:
        yield found


@pytest.fixture
def editor_with_backend(editor: Callable[[str], str], relay: Relay, tmp_path: Path) -> Iterator[Neovim]:
    """Neovim with a file of a folder that the backend may serve."""
    for words in (("add", "local", f"http://127.0.0.1:{relay.port}", "--kind", "llama-server"), ("use", str(tmp_path))):
        subprocess.run([*CAESURA, "backend", *words], check=True)
    (tmp_path / "stack.py").write_text(STACK)
    (tmp_path / ".git").mkdir()  # so that it is the editor's workspace
    with neovim(editor("nvim"), width=110) as vim:
        vim.command(f"set rtp^={PLUGIN} | runtime plugin/caesura.lua")
        vim.lua(COLORS, ["CaesuraGhost", "ComplHint"])
        vim.command(f"filetype on | set shortmess+=I | edit {tmp_path / 'stack.py'}")
        setup = {"cmd": [*CAESURA, "lsp"], "settings": {"minConfidence": 0}, "keymaps": True}
        vim.lua("require('caesura').setup(...)", setup)
        vim.wait(lambda: vim.lua(STATUS)["state"] == "ready", "the backend", READY_S)
        yield vim
    subprocess.run([*CAESURA, "backend", "remove", "local"], check=True)


def test_ghost_text_in_neovim_is_llama_servers(editor_with_backend: Neovim, relay: Relay) -> None:
    vim = editor_with_backend
    vim.input("6GA        return")
    ghost = vim.wait(lambda: vim.ghost.startswith(" self.items.pop") and vim.ghost, "the ghost")
    vim.input("<Tab>")
    vim.wait(lambda: vim.lines[5].startswith("        return" + ghost), "the line")
    asked = json.loads(relay.passed[-1].body)
    assert "def push(self, item):" in asked["input_prefix"]
    assert "def __len__(self):" in asked["input_suffix"]
    assert "local" in vim.lua(STATUS)["device"]
    assert not any(place.holder() for place in rendezvous.running()), "no engine of ours was started"


# The backend alone


def job(prefix: str, document: str = "area.py", **more: Any) -> wire.Infill:
    hole = wire.Hole(max_tokens=more.pop("tokens", 24), kind=more.pop("kind", "line"))
    around = {"prefix": prefix, "suffix": "\n", "segments": (hole,)}
    return wire.Infill(job=job_id(), document=document, deadline_ms=DEADLINE_MS, **around, **more)


def connected(port: int) -> HttpBackend:
    return backend(NamedService("local", f"http://127.0.0.1:{port}/", "llama-server"))


async def text_of(to: HttpBackend, asked: wire.Infill) -> str:
    async for event in to.infill(asked):
        last = event
    assert isinstance(last, wire.Done)
    return last.holes[0].text


async def test_a_cancelled_job_closes_its_connection_and_frees_the_slot(server: LlamaServer, relay: Relay) -> None:
    to = connected(relay.port)
    events = to.infill(job("# A long story about a whale:\n# ", tokens=200, kind="block"))
    await anext(events)
    assert server.busy
    began = time.perf_counter()
    await events.aclose()
    wait(lambda: relay.passed[-1].closed is not None, LEAVES_S)
    assert (relay.passed[-1].closed - began) * 1000 < CLOSES_MS
    wait(lambda: not server.busy, LEAVES_S)
    await to.close()


async def test_the_next_key_reads_only_what_is_new(server: LlamaServer, relay: Relay) -> None:
    to = connected(relay.port)
    for typed in ("ret", "retu"):
        await text_of(to, job(f"{LONG}def mul(left, right):\n    {typed}"))
    first, second = (read_by(passed) for passed in relay.passed)
    assert first > 500
    assert second < 20
    await to.close()


def read_by(passed: Passed) -> int:
    """Tokens of the prompt that the server had not read before."""
    *_, last = re.findall(rb'"prompt_n":(\d+)', passed.answer)
    return int(last)


async def test_a_server_that_is_still_loading_is_waited_for() -> None:
    if said := missing():
        pytest.fail(said, pytrace=False)
    with starting() as server:
        to = connected(server.port)
        await to.start()
        seen = set[str]()
        async with asyncio.timeout(60):
            while to.condition.state != "ready":
                seen.add(to.condition.state)
                await asyncio.sleep(0.01)
        assert "loading" in seen
        assert to.condition.model == "coder-q8_0"
        assert await text_of(to, job("x = [1, 2, 3]\ny = [1, 2, 3"))
        await to.close()
