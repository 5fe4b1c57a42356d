"""What an administrator reads when they name a team's users, or start and stop its door."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from caesura import cli, paths
from caesura.ipc import pairing, rendezvous
from caesura.ipc.keys import own_keys
from caesura.ipc.pairing import PairedClient, Pairs, TeamUser

KEY, OTHER = "ab" * 32, "cd" * 32
Say = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with no keys yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("CAESURA_RUNTIME", str(tmp_path / "run"))


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command. Returns its exit code and all that it said."""

    def run(*words: str) -> tuple[int, str]:
        code = cli.main(words)
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def test_an_invited_user_gets_two_lines_and_a_second_invitation_changes_the_model(say: Say) -> None:
    code, said = say("team", "invite", "anna", KEY, "--model", "small")
    assert code == 0
    assert f"caesura pair with ADDRESS:PORT {own_keys().public.hex()} --name team\n" in said
    assert say("team", "list") == (0, f"anna: {KEY}, model small\n")
    code, said = say("team", "invite", "anna", KEY)
    assert (code, said) == (0, "anna was invited before and now has the default model, from the next job on.\n")
    assert say("team", "list") == (0, f"anna: {KEY}\n")


def test_a_name_stands_for_one_key(say: Say) -> None:
    say("team", "invite", "anna", KEY)
    code, said = say("team", "invite", "anna", OTHER)
    assert (code, "anna is invited with another key" in said) == (1, True)
    assert pairing.pairs().users == (TeamUser("anna", KEY),)


@pytest.mark.parametrize("name", ["an\x1bna", "an na", "an\nna", "anna\u200b", "\u3164", ""])
def test_a_name_is_one_that_a_person_can_read(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["team", "invite", name, KEY], ["pair", "allow", KEY, "--name", name]):
        assert cli.main(command) == 2
        assert "is not a name of letters, digits, dots and dashes" in capsys.readouterr().err
    path = paths.keys() / "pairs.json"
    paths.write(path, json.dumps({"users": [{"name": f"a{name}\n", "key": KEY}]}).encode())
    with pytest.raises(paths.DamagedFile):
        pairing.pairs()


def test_a_model_is_named_in_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["team", "invite", "anna", KEY, "--model", "ein großes"]) == 2
    assert "ASCII" in capsys.readouterr().err


@pytest.mark.parametrize("who", ["anna", KEY])
def test_a_user_is_revoked_by_name_or_key(say: Say, who: str) -> None:
    say("team", "invite", "anna", KEY)
    assert say("team", "revoke", who) == (
        0,
        f"{who} is not let in any more; a running door ends their jobs within a second.\n",
    )
    assert say("team", "list") == (0, "Nobody is invited; run: caesura team invite NAME KEY\n")
    assert say("team", "revoke", who) == (1, f"caesura: There is no user {who}; `caesura team list` names all.\n")


def test_users_of_the_team_and_paired_machines_are_apart(say: Say) -> None:
    say("pair", "allow", OTHER, "--name", "laptop")
    say("team", "invite", "anna", KEY)
    assert "anna" not in say("pair")[1]
    assert say("team", "list") == (0, f"anna: {KEY}\n")
    assert say("team", "revoke", "laptop")[0] == 1
    assert say("pair", "revoke", "anna")[0] == 1
    assert pairing.pairs() == Pairs((PairedClient("laptop", OTHER),), users=(TeamUser("anna", KEY),))


def test_pairs_of_earlier_versions_are_read_and_those_without_a_team_are_read_by_them() -> None:
    path = paths.keys() / "pairs.json"
    paths.write(path, json.dumps({"clients": [{"name": "laptop", "key": KEY}], "engines": []}).encode())
    found = pairing.pairs()
    assert found == Pairs((PairedClient("laptop", KEY),))
    pairing.save(found)
    assert json.loads(path.read_bytes()) == {"clients": [{"name": "laptop", "key": KEY}]}


HOLD = "import sys; from caesura.ipc import rendezvous; lock = rendezvous.door().acquire(); print(flush=True); input()"


@pytest.fixture
def door() -> Iterator[int]:
    """A process that holds the place of the door, and answers nobody."""
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline()
        yield process.pid
        process.kill()


def test_stop_leaves_a_door_running_and_says_how_it_ends(say: Say, door: int) -> None:
    code, said = say("stop")
    sentence = f"Process {door} is the team's door; `caesura stop` leaves it alone, Ctrl-C or `kill {door}` ends it.\n"
    assert (code, said) == (0, f"{sentence}No engine is running.\n")
    assert rendezvous.door().holder()


def test_a_second_door_of_an_account_is_refused_whatever_its_address(
    say: Say, door: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caesura.commands.team.EXTRA", ())
    (tmp_path / "team.toml").write_text('listen = "127.0.0.1:7411"')
    code, said = say("team", "serve", str(tmp_path / "team.toml"))
    assert (code, f"kill {door}" in said) == (1, True)


def test_a_door_without_a_part_of_the_extra_says_what_to_install(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caesura.commands.team.EXTRA", ("json", "nowhere_one", "nowhere.two"))
    said = "caesura: nowhere_one, nowhere.two cannot be imported; run: pip install 'caesura[cluster]'\n"
    assert say("team", "serve", str(tmp_path / "team.toml")) == (1, said)
