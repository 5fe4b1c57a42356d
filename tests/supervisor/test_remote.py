"""Two machines of one user, as two homes on this one: who is let in, what is sent, and what everybody else gets."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio
from zmq.utils import z85

from caesura import cli, paths, wire
from caesura.client import choose, launch, paired
from caesura.client.backend import EngineFailed, EngineUnavailable
from caesura.client.shared import HELLO_S, Engine
from caesura.engine.supervisor import admission, link
from caesura.engine.supervisor.admission import Gate
from caesura.engine.supervisor.clients import CannotListen, Front
from caesura.engine.supervisor.ledger import ELSEWHERE, MAX_PEERS
from caesura.ipc import pairing, rendezvous
from caesura.ipc.keys import new_keys, own_keys

from ..context.test_secrets import lines, planted
from ..lsp.test_lsp import Client
from ..support.clients import FAKE, READY_S, answer, first_event, job, running, status_when, until
from ..support.machines import Machine, client, dealer, free_port, listens
from ..support.processes import points

NOBODY = 65_534
SERVER = f"""
import sys
from caesura.server.app import App
from caesura.client.shared import Engine
command = [sys.executable, {str(FAKE)!r}, "records"]
app = App(lambda options, client, remote: Engine(client=client, model="records", command=command, remote=remote))
sys.exit(app.server.serve())
"""


@dataclass(frozen=True)
class Desk(Machine):
    address: str = ""
    pid: int = 0


@pytest.fixture
async def desk(home: Path, laptop: Machine) -> AsyncIterator[Desk]:
    """A machine with an engine that lets the laptop in, and that the laptop knows."""
    found = Desk(home / "desk", f"127.0.0.1:{free_port()}")
    assert found.run("pair", "allow", laptop.key(), "--name", "laptop") == 0
    assert laptop.run("pair", "with", found.address, found.key(), "--name", "desk") == 0
    command = [sys.executable, str(FAKE), "records", found.address]
    process = subprocess.Popen(command, env=os.environ | found.environment, stdin=subprocess.DEVNULL)
    await until(lambda: listens(found.address), READY_S)
    async with running(client()) as engine:
        await engine.ready(READY_S)
    yield Desk(found.home, found.address, process.pid)
    process.kill()
    process.wait()


async def served_alone(desk: Desk, strange: Callable[[], object]) -> None:
    """While and after a stranger is there, the paired machine is served, and nothing of the stranger's is read."""
    async with running(client()) as found:
        await found.ready(READY_S)
        await asyncio.to_thread(strange)
        assert await answer(found, job()) == "answer"
        status = await found.status()
    assert (status.peers, status.dropped, status.clients) == (1, 0, ("test",))


# Who is let in


async def test_a_paired_machine_is_served_and_starts_no_engine_of_its_own(desk: Desk, laptop: Machine) -> None:
    async with running(client()) as found:
        assert await answer(found, job("of the laptop")) == "answer"
        assert found.condition.device == "fake of desk"
    assert b"of the laptop" in desk.recorded
    assert rendezvous.running() == []


def greet(found: zmq.Socket[bytes], *, name: str = "stranger", wait_ms: int = 700) -> bool:
    """Whether the engine answers a hello."""
    try:
        with contextlib.suppress(zmq.Again):  # it was refused before it could say anything
            found.send(wire.encode(wire.Hello(wire.PROTOCOL, "test", name)), zmq.NOBLOCK)
            found.send(b"what no decoder takes", zmq.NOBLOCK)
        return bool(found.poll(wait_ms))
    finally:
        found.close()


def plain(address: str) -> zmq.Socket[bytes]:
    found: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    found.setsockopt(zmq.LINGER, 0)
    found.setsockopt(zmq.PLAIN_USERNAME, b"me")
    found.setsockopt(zmq.PLAIN_PASSWORD, b"you")
    found.connect(f"tcp://{address}")
    return found


def send_raw(address: str, data: bytes) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 2) as found:
        found.settimeout(2)
        found.sendall(data)
        with contextlib.suppress(OSError):  # it hangs up, or says nothing more
            while found.recv(4096):
                pass


STRANGERS: dict[str, Callable[[Desk], object]] = {
    "a key that nobody allowed": lambda desk: greet(dealer(desk.address, desk.key())),
    "another key of the engine": lambda desk: greet(
        dealer(desk.address, z85.decode(zmq.curve_keypair()[0]).hex(), own_keys())
    ),
    "no key": lambda desk: greet(dealer(desk.address)),
    "a password": lambda desk: greet(plain(desk.address)),
    "a browser": lambda desk: send_raw(desk.address, b"POST / HTTP/1.1\r\nHost: desk\r\nContent-Length: 0\r\n\r\n"),
    "random bytes": lambda desk: send_raw(desk.address, os.urandom(100_000)),
    "half a greeting": lambda desk: send_raw(desk.address, b"\xff\0\0\0\0\0\0\0\1\x7f\3"),
}


@pytest.mark.parametrize("who", STRANGERS)
async def test_a_stranger_is_refused_before_anything_is_read(desk: Desk, who: str) -> None:
    answered: list[object] = []
    await served_alone(desk, lambda: answered.append(STRANGERS[who](desk)))
    assert answered in ([False], [None])


async def test_a_machine_that_is_not_let_in_reads_what_to_do(desk: Desk, laptop: Machine) -> None:
    assert desk.run("pair", "revoke", "laptop") == 0
    async with running(client()) as found:
        with pytest.raises(EngineUnavailable, match=f"run there: caesura pair allow {laptop.key()}"):
            await found.ready(READY_S)
    assert desk.run("pair", "allow", laptop.key()) == 0
    async with running(client()) as found:
        assert await answer(found, job()) == "answer"


async def test_an_engine_with_another_key_is_not_used(desk: Desk, laptop: Machine) -> None:
    assert laptop.run("pair", "forget", "desk") == 0
    assert laptop.run("pair", "with", desk.address, "ab" * 32, "--name", "desk") == 0
    async with running(client()) as found:
        with pytest.raises(EngineUnavailable, match="is not the paired engine"):
            await found.ready(READY_S)


async def test_a_revoked_machine_loses_its_connection_and_its_jobs(desk: Desk, laptop: Machine) -> None:
    async with running(client()) as found:
        await first_event(found, job())
        endless = asyncio.create_task(answer(found, job("endless")))
        await status_when(found, lambda status: status.live == 1)
        assert desk.run("pair", "revoke", "laptop") == 0
        revoked = time.monotonic()
        with pytest.raises(EngineFailed):
            await endless
        await until(lambda: "run there" in found.condition.message)
        assert time.monotonic() - revoked < 10
    with desk.at():
        (place,) = rendezvous.running()
        async with running(Engine(client="desk", spawn=False, place=place)) as own:
            status = await own.status()
    assert (status.peers, status.live) == (1, 0)


async def test_another_machine_cannot_stop_the_engine(desk: Desk) -> None:
    keys = own_keys()
    found = dealer(desk.address, desk.key(), keys)
    found.send(wire.encode(wire.Hello(wire.PROTOCOL, "test", "raw")))
    found.send(wire.encode(wire.Stop()))
    async with running(client()) as other:
        await status_when(other, lambda status: status.dropped == 1)
        assert await answer(other, job()) == "answer"
    found.close()
    assert await asyncio.to_thread(desk.run, "stop") == 0
    with desk.at():
        assert rendezvous.running() == []


async def test_a_local_client_and_one_elsewhere_may_have_the_same_name(desk: Desk) -> None:
    with desk.at():
        (place,) = rendezvous.running()
    doors = [dealer(f"ipc://{place.socket}"), dealer(desk.address, desk.key(), own_keys())]
    for found in doors:
        found.disconnect(found.last_endpoint)
        found.setsockopt(zmq.IDENTITY, b"same")
        found.connect(f"ipc://{place.socket}" if found is doors[0] else f"tcp://{desk.address}")
        found.send(wire.encode(wire.Hello(wire.PROTOCOL, "test", f"door {doors.index(found)}")))
        assert await asyncio.to_thread(found.poll, 2000)
        assert isinstance(wire.decode_engine(found.recv()), wire.Welcome)
    for found in doors:
        found.send(wire.encode(wire.Query()))
        assert await asyncio.to_thread(found.poll, 2000)
        status = wire.decode_engine(found.recv())
        assert isinstance(status, wire.Status)
        assert status.clients == ("door 0", "door 1")
        assert not await asyncio.to_thread(found.poll, 100)
    for found in doors:
        found.close()


async def test_paired_machines_leave_room_for_the_editors_of_this_one(desk: Desk) -> None:
    keys = own_keys()
    crowd = [dealer(desk.address, desk.key(), keys) for _ in range(MAX_PEERS // ELSEWHERE)]

    async def state(found: zmq.Socket[bytes]) -> str:
        found.send(wire.encode(wire.Hello(wire.PROTOCOL, "test", "crowd")))
        assert await asyncio.to_thread(found.poll, 5000)
        welcome = wire.decode_engine(found.recv())
        assert isinstance(welcome, wire.Welcome)
        return f"{welcome.state} {welcome.message}".rstrip()

    assert {await state(found) for found in crowd} == {"ready"}
    late = dealer(desk.address, desk.key(), keys)
    assert await state(late) == "failed Too many clients are connected to this engine."
    with desk.at():
        (place,) = rendezvous.running()
        async with running(Engine(client="desk", spawn=False, place=place)) as own:
            assert await answer(own, job()) == "answer"
    for found in (*crowd, late):
        found.close()


# Before it listens


@pytest.fixture
def front(laptop: Machine) -> Iterator[Front]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    found = Front(context, paths.runtime() / "front.sock")
    yield found
    found.close()
    context.term()


def test_an_engine_that_refuses_strangers_listens(front: Front) -> None:
    front.listen(f"127.0.0.1:{free_port()}", own_keys())


def test_an_engine_that_would_let_a_stranger_in_does_not_listen(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gate, "_judge", lambda self, *about: "anybody")
    with pytest.raises(CannotListen, match="stranger was not refused"):
        front.listen(f"127.0.0.1:{free_port()}", own_keys())


def test_an_engine_that_does_not_know_whether_it_would_does_not_listen_and_says_so(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caesura.engine.supervisor.admission.TRIAL_S", 0.3)
    monkeypatch.setattr(Gate, "answer", lambda self: None)
    with pytest.raises(CannotListen, match="is not known: nobody said so within"):
        front.listen(f"127.0.0.1:{free_port()}", own_keys())


def test_on_a_machine_that_is_slow_for_a_while_strangers_are_refused_in_the_end(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the first connection was given up meanwhile."""
    real, began = Gate.answer, time.monotonic()
    monkeypatch.setattr(Gate, "answer", lambda self: real(self) if time.monotonic() - began > 1.2 else None)
    front.listen(f"127.0.0.1:{free_port()}", own_keys())


def test_no_client_takes_an_engine_that_tries_its_door_for_stuck() -> None:
    assert admission.TRIAL_S < launch.HELLOS * HELLO_S


def test_nobody_gets_in_where_nobody_answers_at_the_gate(laptop: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caesura.engine.supervisor.admission.ADDRESS", "inproc://elsewhere")
    keys, address = own_keys(), f"tcp://127.0.0.1:{free_port()}"
    with zmq.Context() as context, context.socket(zmq.ROUTER) as door:
        elsewhere = Gate(context, lambda key: True)
        admission.guard(door, "remote")
        door.setsockopt(zmq.CURVE_SERVER, 1)
        door.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
        door.bind(address)
        greet(dealer(address, keys.public.hex()))
        assert not door.poll(0)
        elsewhere.close()


def heard(
    front: Front, found: zmq.Socket[bytes], message: wire.ClientMessage, wait_s: float = READY_S
) -> wire.ClientMessage | None:
    """What the engine makes of a message, None where it hears nothing or does not take it."""
    found.send(wire.encode(message))
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        if received := front.receive():
            return received[1]
        time.sleep(0.001)
    return None


def test_a_process_of_another_user_is_not_heard_though_it_reaches_the_socket(front: Front) -> None:
    hello, address = wire.Hello(wire.PROTOCOL, "test", "raw"), f"ipc://{paths.runtime() / 'front.sock'}"
    with dealer(address) as other, pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.getuid", partial(int, os.getuid() + 1))  # the engine is of another than we are
        assert heard(front, other, hello, 0.5) is None
    with dealer(address) as own:
        assert heard(front, own, hello) == hello


def test_of_a_paired_machine_a_stop_is_not_heard_and_nothing_once_it_is_revoked(laptop: Machine, front: Front) -> None:
    own, address = own_keys(), f"127.0.0.1:{free_port()}"
    keys = new_keys()
    assert laptop.run("pair", "allow", keys.public.hex(), "--name", "desk") == 0
    front.listen(address, own)
    with dealer(address, own.public.hex(), keys) as found:
        assert heard(front, found, wire.Ping()) == wire.Ping()
        assert heard(front, found, wire.Stop()) is None
        assert laptop.run("pair", "revoke", "desk") == 0
        assert heard(front, found, wire.Ping()) == wire.Bye()


@pytest.mark.parametrize("team", [False, True])
def test_a_user_of_a_team_gets_in_at_its_door_alone_and_a_paired_machine_everywhere_else(
    laptop: Machine, team: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """And the log of each says how to let in whom it refused."""
    own, address, machine, user = own_keys(), f"127.0.0.1:{free_port()}", new_keys(), new_keys()
    assert laptop.run("pair", "allow", machine.public.hex(), "--name", "desk") == 0
    assert laptop.run("team", "invite", "anna", user.public.hex()) == 0
    admitted, refused = (user, machine) if team else (machine, user)
    command = "caesura team invite NAME" if team else "caesura pair allow"
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    listening = Front(context, paths.runtime() / "front.sock", team=team)
    listening.listen(address, own)
    with dealer(address, own.public.hex(), admitted) as found:
        assert heard(listening, found, wire.Ping()) == wire.Ping()
    with dealer(address, own.public.hex(), refused) as found:
        assert heard(listening, found, wire.Ping(), 0.5) is None
    assert f": {command} {refused.public.hex()}" in caplog.text
    listening.close()
    context.term()


def test_without_keys_of_its_own_an_engine_does_not_listen(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caesura.engine.supervisor.admission.TRIAL_S", 0.5)
    real = zmq.Socket.setsockopt
    monkeypatch.setattr(
        zmq.Socket, "setsockopt", lambda self, name, value: name == zmq.CURVE_SERVER or real(self, name, value)
    )
    with pytest.raises(CannotListen, match="is not known"):  # who has none is hung up on
        front.listen(f"127.0.0.1:{free_port()}", own_keys())


@pytest.mark.parametrize("address", ["0.0.0.0:7411", "*:7411", ":7411", "[::]:7411", "[::ffff:0.0.0.0]:7411"])
def test_an_address_of_every_network_is_refused(address: str) -> None:
    with pytest.raises(pairing.BadAddress, match="would listen on every network"):
        pairing.own_address(address)


def test_no_engine_is_started_for_every_network(laptop: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["engine", "--listen", "0.0.0.0:7411"]) == 2
    assert "would listen on every network" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536", "desk:7411", "::1:7411", "eth0:1"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(pairing.BadAddress):
        pairing.own_address(address)


def test_an_address_that_is_taken_is_refused_in_a_sentence(front: Front) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(CannotListen, match="in use"):
            front.listen(f"127.0.0.1:{taken.getsockname()[1]}", own_keys())


# Keys


def test_keys_are_the_users_own_and_stay_the_same(laptop: Machine) -> None:
    first = laptop.key()
    assert laptop.run("pair", "allow", "cd" * 32) == 0
    assert laptop.key() == first
    assert stat.S_IMODE(laptop.keys.stat().st_mode) == 0o700
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in laptop.keys.iterdir()} == {
        "secret": 0o600,
        "pairs.json": 0o600,
    }


@pytest.mark.parametrize(
    ("name", "mode", "remedy"), [("", 0o750, "700"), ("secret", 0o640, "600"), ("pairs.json", 0o604, "600")]
)
def test_keys_that_others_could_reach_are_refused(
    laptop: Machine, name: str, mode: int, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert laptop.run("pair", "allow", "cd" * 32) == 0
    (laptop.keys / name).chmod(mode)
    assert laptop.run("pair") == 1
    assert f"chmod {remedy}" in capsys.readouterr().err


def test_links_in_the_place_of_keys_are_refused(laptop: Machine, tmp_path: Path) -> None:
    laptop.key()
    (laptop.keys / "secret").rename(tmp_path / "secret")
    (laptop.keys / "secret").symlink_to(tmp_path / "secret")
    assert laptop.run("pair") == 1


def test_the_secret_key_is_shown_nowhere(laptop: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    laptop.run("pair")
    secret = own_keys().secret
    shown = capsys.readouterr().out + repr(own_keys())
    assert secret.hex() not in shown
    assert repr(secret) not in shown


async def test_no_process_has_a_secret_key_in_its_arguments_or_its_environment(desk: Desk) -> None:
    with desk.at():
        secret = own_keys().secret
        (place,) = rendezvous.running()
        async with running(Engine(client="desk", spawn=False, place=place)) as own:
            worker = (await status_when(own, lambda status: status.worker_pid is not None)).worker_pid
    said = [Path(f"/proc/{pid}/{what}").read_bytes() for pid in (desk.pid, worker) for what in ("cmdline", "environ")]
    assert all(said)
    assert not [form for form in (secret, secret.hex().encode(), z85.encode(secret)) if form in b"".join(said)]


def test_pairs_that_could_not_be_read_count_again_once_that_is_mended(
    laptop: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    key = "ab" * 32
    assert cli.main(["pair", "allow", key, "--name", "desk"]) == 0
    watched = pairing.watched()
    assert watched.now.clients
    laptop.keys.chmod(0o755)
    stranger = pairing.watched()  # who has never read them
    for _ in range(3):
        assert not stranger.now.clients
    assert caplog.text.count("No machine counts as paired") == 1
    laptop.keys.chmod(0o700)  # which does not change the file
    assert stranger.now.clients


async def test_who_cannot_be_read_is_not_let_in(desk: Desk) -> None:
    (desk.keys / "pairs.json").chmod(0o644)
    async with running(client()) as found:
        with pytest.raises(EngineUnavailable, match="does not know this machine"):
            await found.ready(READY_S)


# Another user of the machine


def as_nobody(act: Callable[[], object]) -> str:
    """What `act` comes to in a process of another user."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        signal.alarm(30)
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            result = repr(act())
        except BaseException as error:
            result = type(error).__name__
        os.write(writer, result.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        found = file.read()
    os.waitpid(pid, 0)
    return found


def knock(endpoint: str, server: str = "") -> bool:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    found = context.socket(zmq.DEALER)
    found.setsockopt(zmq.LINGER, 0)
    if server:
        public, secret = zmq.curve_keypair()
        found.setsockopt(zmq.CURVE_SERVERKEY, bytes.fromhex(server))
        found.setsockopt(zmq.CURVE_PUBLICKEY, public)
        found.setsockopt(zmq.CURVE_SECRETKEY, secret)
    found.connect(endpoint)
    return greet(found, name="nobody")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_another_user_is_refused_at_every_door(desk: Desk, home: Path) -> None:
    with desk.at():
        (place,) = rendezvous.running()
    own, address, key = f"ipc://{place.socket}", f"tcp://{desk.address}", desk.key()
    assert as_nobody(lambda: (desk.keys / "secret").read_bytes()) == "PermissionError"
    assert as_nobody(lambda: (desk.keys / "pairs.json").write_bytes(b"{}")) == "PermissionError"
    assert as_nobody(lambda: knock(address)) == "False"
    assert as_nobody(lambda: knock(address, key)) == "False"
    assert as_nobody(lambda: knock(own)) == "False"
    for path in (home, desk.home, place.stem.parent, place.socket):
        path.chmod(0o777)  # as a careless chmod -R would
    assert as_nobody(lambda: (place.stem.parent / "secret").write_bytes(b"")) != "PermissionError"  # it is inside
    assert await asyncio.to_thread(knock, own)
    await served_alone_after_local(desk, lambda: as_nobody(lambda: knock(own)))
    await answered_by_its_own_worker(desk, place)


async def served_alone_after_local(desk: Desk, act: Callable[[], str]) -> None:
    async with running(client()) as found:
        await found.ready(READY_S)
        before = await status_when(found, lambda status: status.peers == 1)
        assert await asyncio.to_thread(act) == "False"
        after = await found.status()
    assert (after.dropped, after.clients) == (before.dropped, before.clients)


async def answered_by_its_own_worker(desk: Desk, place: rendezvous.EnginePlace) -> None:
    """Where another user comes to the worker's door before the worker does."""
    runtime = place.stem.parent
    points.plan(runtime, "starting", "stop")
    async with running(client()) as found:
        os.kill((await found.status()).worker_pid or 0, signal.SIGKILL)
        await until(lambda: points.happened(runtime) is not None)
        status = await status_when(found, lambda status: status.worker_pid is not None)
        assert status.worker_pid
        (door,) = runtime.glob("*.w*")
        door.chmod(0o777)
        await asyncio.to_thread(as_nobody, lambda: pretend(f"ipc://{door}"))
        assert (await found.status()).message == ""
        os.kill(status.worker_pid, signal.SIGCONT)
        assert await answer(found, job()) == "answer"
        assert (await found.status()).worker_pid == status.worker_pid


def pretend(endpoint: str) -> None:
    """Be the worker."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with link.pair(context) as found:
        found.connect(endpoint)
        found.send(link.encode(link.LoadFailed("I am nobody.")))
        found.poll(700)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("arguments", "told"), [("lsp --tcp", b""), ("demo --no-browser", b"HTTP/1.1 403")])
async def test_another_user_does_not_learn_the_word_that_opens_a_port(
    laptop: Machine, arguments: str, told: bytes
) -> None:
    command = [sys.executable, "-P", "-m", "caesura", *arguments.split()]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout
        said = (await asyncio.wait_for(process.stdout.readline(), READY_S)).decode()
        port, word = (re.findall(pattern, said)[0] for pattern in (r"\b\d{4,5}\b", r"[\w-]{43,}"))
        seen = await asyncio.to_thread(as_nobody, lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes())
        assert arguments.split()[-1] in seen
        assert word not in seen
        assert as_nobody(lambda: Path(f"/proc/{process.pid}/environ").read_bytes()) == "PermissionError"
        greeting = f"POST /key HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\n\r\n"
        assert await asyncio.to_thread(as_nobody, lambda: answered_at(int(port), greeting)[:12]) == repr(told)
    finally:
        process.kill()
        await process.wait()


def answered_at(port: int, greeting: str) -> bytes:
    """All that is answered to these words."""
    with socket.socket() as found:
        found.connect(("127.0.0.1", port))
        found.sendall(greeting.encode())
        answered = b""
        with contextlib.suppress(ConnectionResetError):
            while more := found.recv(4096):
                answered += more
        return answered


# What is sent


def test_only_folders_that_were_named_use_another_machine(laptop: Machine, tmp_path: Path) -> None:
    named, other = tmp_path / "named", tmp_path / "other"
    for folder in (named / "inner", other, tmp_path / "named too"):
        folder.mkdir(parents=True)
    (named / "out").symlink_to(other)
    (tmp_path / "in").symlink_to(named)
    assert laptop.run("pair", "with", "desk:7411", "ab" * 32) == 0
    assert choose.agreement([str(named)]) is None
    assert laptop.run("pair", "use", str(named)) == 0
    for folders, used in (
        ([named], True),
        ([named / "inner"], True),
        ([tmp_path / "in"], True),
        ([named, named / "inner"], True),
        ([], False),
        ([other], False),
        ([tmp_path], False),
        ([tmp_path / "named too"], False),
        ([named, other], False),
        ([named / "out"], False),
        ([named / ".." / "other"], False),
        ([Path("named")], False),
    ):
        assert (choose.agreement([str(folder) for folder in folders]) is not None) is used, folders
    assert laptop.run("pair", "forget", str(named)) == 0
    assert choose.agreement([str(named)]) is None


class Editor:
    """An editor's session with the real server; `folders` are its workspace. Its own engine is a fake unless `server`
    says otherwise."""

    def __init__(self, *folders: Path, ready: bool = True, server: Sequence[str] = ("-c", SERVER)) -> None:
        self._folders = folders
        self._server = server
        self._ready = ready

    async def __aenter__(self) -> "Editor":
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", *self._server, stdin=pipe, stdout=pipe
        )
        self.client = Client(self._process)
        folders = [{"uri": folder.as_uri(), "name": folder.name} for folder in self._folders]
        settings = {"remote": "desk", "engines": ["desk"], "deadlineMs": 10_000}
        if self._ready:
            await self.client.start(workspaceFolders=folders, initializationOptions=settings)
        else:
            hello = {"processId": None, "capabilities": {}, "initializationOptions": settings}
            await self.client.call("initialize", {**hello, "workspaceFolders": folders})
        return self

    async def __aexit__(self, *_: object) -> None:
        self.client._task.cancel()
        self._process.kill()
        await self._process.wait()

    def open(self, uri: str, text: str, language: str = "python") -> None:
        document = {"uri": uri, "languageId": language, "version": 0, "text": text}
        self.client.notify("textDocument/didOpen", {"textDocument": document})

    async def fill(self, uri: str) -> dict[str, Any]:
        """Fill the first letter of a document."""
        span = {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 1}}
        order = {"uri": uri, "ranges": [span], "preview": True}
        call = {"command": "caesura.fillSelection", "arguments": [order]}
        return dict(await self.client.call("workspace/executeCommand", call))

    async def complete(self, uri: str, text: str) -> list[Any]:
        """What is proposed at the end of a document."""
        self.open(uri, text)
        *before, last = text.split("\n")
        where = {"textDocument": {"uri": uri}, "position": {"line": len(before), "character": len(last)}}
        found = await self.client.call("textDocument/inlineCompletion", {**where, "context": {"triggerKind": 1}})
        return list(found["items"])


@pytest.fixture
def project(laptop: Machine, desk: Desk, tmp_path: Path) -> Path:
    """A folder that was named for the desk."""
    found = tmp_path / "project"
    found.mkdir()
    assert laptop.run("pair", "use", str(found)) == 0
    return found


async def test_a_hidden_file_and_one_outside_of_the_named_folders_are_never_sent(
    desk: Desk, laptop: Machine, project: Path
) -> None:
    (project / ".caesuraignore").write_text("private.py\n")
    (project / "private.py").write_text("def mark_of_a_neighbour_that_is_hidden(): ...\n")
    (project / ".env").write_text("x")
    (project / "notes.py").symlink_to(project / ".env")
    (project / "away.py").symlink_to(project.parent / "outside.py")
    paths_of = [project / name for name in ("private.py", ".env", "notes.py", "away.py")]
    uris = [path.as_uri() for path in (*paths_of, project.parent / "outside.py")]
    async with Editor(project) as editor:
        for uri in (*uris, "untitled:Untitled-1", f"vscode-remote://host{project}/a.py"):
            assert await editor.complete(uri, "mark_of_a_hidden_document = ") == []
            await editor.fill(uri)
        assert await editor.complete((project / "main.py").as_uri(), "import private\nvalue = ")
    assert b"value = " in desk.recorded
    assert b"ark_of" not in desk.recorded  # a fill asks for the first letter again
    assert laptop.recorded == b""


async def test_nothing_is_sent_by_being_early(desk: Desk, project: Path) -> None:
    """A request before `initialized`, when no engine is connected yet."""
    async with Editor(project, ready=False) as editor:
        early = asyncio.create_task(editor.complete((project.parent / "outside.py").as_uri(), "too_early = "))
        fits = asyncio.create_task(editor.complete((project / "main.py").as_uri(), "in_time = "))
        await asyncio.sleep(0.2)
        editor.client.notify("initialized", {})
        assert await early == []
        await fits
        assert await editor.complete((project / "main.py").as_uri(), "in_time = ")
    assert b"in_time" in desk.recorded
    assert b"too_early" not in desk.recorded


async def test_fifty_secrets_stay_here(desk: Desk, project: Path) -> None:
    """In a document, in one beside it and in one that it imports; for ghost text and for fills."""
    here, open_, imported = planted()
    (project / "shapes.py").write_text(lines(imported) + "def visible_shape(): ...\n")
    text = "from shapes import visible_shape\n" + lines(here)
    async with Editor(project) as editor:
        editor.open((project / "beside.py").as_uri(), lines(open_) + "def visible_beside(): ...\n")
        main = (project / "main.py").as_uri()
        await editor.complete(main, text + "visible_beside(visible_shape(")
        await asyncio.sleep(0.5)  # what it imports is read meanwhile
        assert await editor.complete(main, text + "visible_beside(visible_shape(1, ")
        await editor.fill(main)
    secrets = [*here, *open_, *imported]
    assert len(set(secrets)) == 50
    assert [secret for secret in secrets if secret.encode() in desk.recorded] == []
    assert b"visible_shape(1, " in desk.recorded


async def test_a_workspace_that_was_not_named_stays_here_whatever_its_settings_say(
    desk: Desk, laptop: Machine, project: Path, tmp_path: Path
) -> None:
    other = tmp_path / "cloned"
    (other / ".vscode").mkdir(parents=True)
    (other / ".vscode" / "settings.json").write_text('{"caesura.remote": "desk"}')
    async with Editor(project, other) as editor:
        assert await editor.complete((project / "main.py").as_uri(), "both = ")
    async with Editor(other) as editor:
        assert await editor.complete((other / "main.py").as_uri(), "alone = ")
    assert desk.recorded == b""
    assert b"both = " in laptop.recorded
    assert b"alone = " in laptop.recorded


async def test_a_schema_that_settings_name_is_not_sent_from_elsewhere(
    desk: Desk, project: Path, tmp_path: Path
) -> None:
    schema = tmp_path / "diary.json"
    schema.write_text('{"type": "object", "properties": {"MARK_OF_A_DIARY": {"type": "string"}}}')
    (project / "own.json").write_text('{"type": "object", "properties": {"MARK_OF_THE_PROJECT": {"type": "string"}}}')
    async with Editor(project) as editor:
        given = {
            "schemas": [{"fileMatch": ["a.json"], "url": str(schema)}, {"fileMatch": ["b.json"], "url": "own.json"}]
        }
        editor.client.notify("workspace/didChangeConfiguration", {"settings": {"caesura": given}})
        text, documents = '{\n  ""\n}', [{"uri": (project / name).as_uri()} for name in ("a.json", "b.json")]
        for document in documents:
            editor.open(document["uri"], text, "json")
        async with asyncio.timeout(READY_S):
            while b"MARK_OF_THE_PROJECT" not in desk.recorded:  # meanwhile both are looked for, the first one first
                text += "\n"
                for document in documents:
                    change = {"textDocument": {**document, "version": len(text)}, "contentChanges": [{"text": text}]}
                    editor.client.notify("textDocument/didChange", change)
                    where = {"textDocument": document, "position": {"line": 1, "character": 3}}
                    await editor.client.call("textDocument/inlineCompletion", {**where, "context": {"triggerKind": 1}})
    assert b"MARK_OF_A_DIARY" not in desk.recorded


async def test_what_was_taken_back_is_not_sent_from_the_next_key_on(desk: Desk, laptop: Machine, project: Path) -> None:
    async with Editor(project) as editor:
        assert await editor.complete((project / "main.py").as_uri(), "before = ")
        assert laptop.run("pair", "forget", str(project)) == 0
        assert await editor.complete((project / "other.py").as_uri(), "after = ") == []
    assert b"before = " in desk.recorded
    assert b"after = " not in desk.recorded


async def test_a_folder_that_comes_later_is_not_sent(desk: Desk, project: Path, tmp_path: Path) -> None:
    late = tmp_path / "late"
    late.mkdir()
    async with Editor(project) as editor:
        added = {"added": [{"uri": late.as_uri(), "name": "late"}], "removed": []}
        editor.client.notify("workspace/didChangeWorkspaceFolders", {"event": added})
        assert await editor.complete((late / "main.py").as_uri(), "late = ") == []
        assert await editor.complete((project / "main.py").as_uri(), "early = ")
    assert b"late = " not in desk.recorded
    assert b"early = " in desk.recorded


# When it is not there


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAESURA_IDLE_EXIT", "0.2")


async def test_an_engine_that_listens_stays_when_nobody_uses_it(impatient: None, desk: Desk) -> None:
    await asyncio.sleep(1.0)
    assert listens(desk.address)


async def test_an_engine_that_is_not_there_is_told_and_answers_at_once(desk: Desk, laptop: Machine) -> None:
    async with running(client()) as found:
        await found.ready(READY_S)
        os.kill(desk.pid, 9)
        await until(lambda: found.state == "unavailable")
        assert "does not answer; check that `caesura engine --listen" in found.condition.message
        began = time.monotonic()
        with pytest.raises(EngineUnavailable, match="does not answer"):
            await answer(found, job())
        assert time.monotonic() - began < 2
    assert rendezvous.running() == []


async def test_another_version_is_told(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "__version__", "0.9.9")
    async with running(client()) as found:
        with pytest.raises(EngineUnavailable, match="install the same on both"):
            await found.ready(READY_S)


async def test_another_protocol_is_told(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PROTOCOL", wire.PROTOCOL + 1)
    async with running(client()) as found:
        with pytest.raises(EngineUnavailable, match=f"speaks protocol {wire.PROTOCOL - 1}"):
            await found.ready(READY_S)


async def test_status_shows_the_engine_elsewhere_and_stop_leaves_it_alone(
    desk: Desk, laptop: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await asyncio.to_thread(laptop.run, "status") == 0
    assert f"on desk ({desk.address}): ready: records" in capsys.readouterr().out
    assert await asyncio.to_thread(laptop.run, "stop") == 0
    with desk.at():
        assert len(rendezvous.running()) == 1
    os.kill(desk.pid, 9)
    assert await asyncio.to_thread(laptop.run, "status") == 0
    assert "does not answer" in capsys.readouterr().out
