"""The list of defences of the engine, of its wire, of files and of models: without any one of them, a test of the
suite fails, and in the way that is named here. Those of the language server that a case of the battery misses are in
test_defences.py.
"""

import asyncio
import fcntl
import inspect
import os
import re
import resource
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from hypothesis import Phase
from pathspec import GitIgnoreSpec
from pygls.protocol import LanguageServerProtocol

from caesura import doors, logs, pairing, paths, rendezvous, wire
from caesura.commands.source import Source
from caesura.engine import canary, checkpoint, child, gate, models, supervisor, tokenizer, tokenizer_file, weights
from caesura.engine import front as fronts
from caesura.engine import ledger as ledgers
from caesura.engine.clock import Clock
from caesura.engine.faults import Faults
from caesura.engine.front import Front
from caesura.engine.gate import Gate
from caesura.engine.ledger import Ledger
from caesura.engine.models import block_llama
from caesura.engine.scheduler import Scheduler
from caesura.engine.supervisor import Supervisor
from caesura.engine.tokenizer import Tokenizer
from caesura.pairing import Pairs, Remote
from caesura.recent import Recent, Remembered
from caesura.server import (
    completion,
    fill,
    gaps,
    globs,
    json_scaffold,
    launch,
    loopback,
    outline,
    privacy,
    structured,
    warm,
)
from caesura.server.canvases import Canvases
from caesura.server.files import Files, Texts
from caesura.server.framing import Framer
from caesura.server.privacy import Ignore
from caesura.server.protocol import Rules
from caesura.server.schema_files import SchemaFiles
from caesura.server.typing import Typing
from caesura.server.warm import WarmCanvas

from . import (
    test_battery,
    test_canary,
    test_checkpoint,
    test_cli,
    test_completion,
    test_doors,
    test_faults,
    test_files,
    test_fill,
    test_hostile_project,
    test_interleavings,
    test_json_edits,
    test_loopback,
    test_models,
    test_neighbours,
    test_privacy,
    test_processes,
    test_remote,
    test_schema_files,
    test_secrets,
    test_structured,
    test_supervisor,
    test_tokenizer,
    test_typing,
    test_weights,
    test_wire,
)
from .test_cli import source  # noqa: F401 (a fixture, as the next ones)
from .test_hostile_project import hostile  # noqa: F401
from .test_loopback import few, listener  # noqa: F401
from .test_models import folder  # noqa: F401
from .test_processes import runtime  # noqa: F401
from .test_remote import front, home, laptop  # noqa: F401
from .test_schema_files import project  # noqa: F401
from .test_supervisor import alone  # noqa: F401

Remove = Callable[[pytest.MonkeyPatch], None]
NOT_RAISED = "DID NOT RAISE"


def cut(owner: Any, name: str, *changes: tuple[str, str]) -> Remove:
    """The function `name` of a module or class with other words in the place of those that defend."""

    def remove(patch: pytest.MonkeyPatch) -> None:
        function = inspect.unwrap(getattr(owner, name))
        text = textwrap.dedent(inspect.getsource(function))
        for old, new in changes:
            assert text.count(old) == 1, f"{old!r} is not what defends in {name} any more"
            text = text.replace(old, new)
        made: dict[str, Any] = {}
        exec(compile(text, "without", "exec"), vars(sys.modules[function.__module__]), made)  # noqa: S102 (our own)
        patch.setattr(owner, name, made[name])

    return remove


def lenient(pattern: str, new: str, module: ModuleType = wire) -> Remove:
    """A module as it would be if its file said `new` wherever it says `pattern`."""

    def remove(patch: pytest.MonkeyPatch) -> None:
        text, times = re.subn(pattern, new, inspect.getsource(module))
        assert times, f"{pattern!r} is not what defends any more"
        made = {"__name__": module.__name__}
        exec(compile(text, "without", "exec"), made)  # noqa: S102
        for name, value in made.items():
            patch.setattr(module, name, value, raising=False)

    return remove


def both(*removes: Remove) -> Remove:
    def remove(patch: pytest.MonkeyPatch) -> None:
        for one in removes:
            one(patch)

    return remove


def put(owner: Any, name: str, value: object) -> Remove:
    return lambda patch: patch.setattr(owner, name, value)


def as_it_is(*texts: Any) -> Any:
    """What was given, uncovered."""
    return texts if texts[1:] else texts[0]


@dataclass(frozen=True)
class Defence:
    """What `remove` takes away, the test that misses it, and what that then says. `arguments` are those of the test's
    parameters that are no fixtures of that name; one that is callable makes the value."""

    name: str
    remove: Remove
    test: Callable[..., Any]
    says: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


DEFENCES = [
    # Who is heard
    Defence(
        "a key has to be paired",
        cut(Gate, "_judge", ("self._admits(key)", "True")),
        test_remote.test_an_engine_that_refuses_strangers_listens,
        "A stranger was not refused",
    ),
    Defence(
        "only keys that the user allowed are paired",
        cut(Pairs, "admits", ("any(client.key == key for client in self.clients)", "True")),
        test_remote.test_an_engine_that_refuses_strangers_listens,
        "A stranger was not refused",
    ),
    Defence(
        "only the user's own processes come in at the local door",
        cut(Gate, "_judge", ('ids.partition(":")[0] == str(os.getuid())', "ids")),
        test_remote.test_a_process_of_another_user_is_not_heard_though_it_reaches_the_socket,
        r"Hello\(.* is None",
    ),
    Defence(
        "where nobody decides who comes in, nobody does (ZAP_ENFORCE_DOMAIN)",
        cut(gate, "guard", ("socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)", "")),
        test_remote.test_nobody_gets_in_where_nobody_answers_at_the_gate,
        r"assert not 1",
    ),
    Defence(
        "behind a port of this machine a key has to be proved",
        both(put(doors, "UNIX", False), cut(Gate, "_judge", ("credentials == [bytes.fromhex(guest)]", "credentials"))),
        test_doors.test_the_first_at_the_door_of_the_worker_is_the_worker,
        "assert .* == ",
    ),
    Defence(
        "an engine knocks at its own door before it listens",
        cut(Front, "listen", ("if not refuses:", "if False:")),
        test_remote.test_an_engine_that_would_let_a_stranger_in_does_not_listen,
        NOT_RAISED,
    ),
    Defence(
        "not to know who is let in is not to listen",
        cut(Front, "listen", ("if refuses is None:", "if False:"), ("if not refuses:", "if refuses is False:")),
        test_remote.test_an_engine_that_does_not_know_whether_it_would_does_not_listen_and_says_so,
        NOT_RAISED,
    ),
    Defence(
        "a key that is taken back counts no more, connected or not",
        cut(Front, "_read", ('if door and not self._paired.pairs.admits(str(frame.get("User-Id"))):', "if False:")),
        test_remote.test_of_a_paired_machine_a_stop_is_not_heard_and_nothing_once_it_is_revoked,
        r"Ping\(\) == Bye\(\)",
    ),
    Defence(
        "another machine cannot stop the engine",
        cut(Front, "_read", ("door and isinstance(message, wire.Stop)", "False")),
        test_remote.test_of_a_paired_machine_a_stop_is_not_heard_and_nothing_once_it_is_revoked,
        r"Stop\(\) is None",
    ),
    Defence(
        "no engine listens on every network",
        cut(pairing, "own_address", ('if host in ("*", "") or', "if False and")),
        test_remote.test_an_address_of_every_network_is_refused,
        NOT_RAISED,
        {"address": "0.0.0.0:7411"},
    ),
    Defence(
        "libzmq is not an old one",
        cut(Front, "__init__", ("zmq.zmq_version_info() < LIBZMQ", "False")),
        test_processes.test_an_old_libzmq_is_told_in_a_sentence,
        NOT_RAISED,
    ),
    # What an editor's end may do
    Defence(
        "of noise that begins no message little is kept",
        cut(Framer, "_header", ("del self._buffer[:-MAX_HEADER]", "")),
        test_battery.test_of_noise_that_begins_no_message_little_is_kept,
        r"assert \d+ <= ",
    ),
    Defence(
        "a shutdown cancels what waits",
        put(Rules, "lsp_shutdown", LanguageServerProtocol.lsp_shutdown),
        test_battery.test_a_request_that_waits_at_shutdown_is_cancelled,
        r"assert \[\(False",
    ),
    Defence(
        "so many strangers may be silent at a port",
        both(put(loopback, "MAX_GUESTS", 1 << 30), put(test_loopback, "SOON_S", 0.2)),
        test_loopback.test_a_crowd_of_silent_ones_is_bounded_and_keeps_nobody_out,
        "assert False",
    ),
    Defence(
        "and for so long",
        both(cut(loopback, "_says", ("timeout(GREETING_S)", "timeout(None)")), put(test_loopback, "SOON_S", 0.2)),
        test_loopback.test_who_says_nothing_keeps_nobody_waiting_and_is_closed,
        "assert False",
    ),
    Defence(
        "of strangers so many are named",
        put(gate, "MAX_NAMED", 1 << 30),
        test_supervisor.test_a_crowd_of_strangers_does_not_fill_the_log,
        "assert 100 == 16",
    ),
    # What a client may ask for
    Defence(
        "frames have a limit",
        cut(Front, "_add", ("socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_FRAME)", "")),
        test_processes.test_of_a_frame_that_is_too_large_nothing_is_read,
        r"\[True, True\] == \[True, False\]",
    ),
    Defence(
        "a flood has its turns, also one that means nothing",
        cut(Supervisor, "_hear_clients", ("for _ in range(BURST):", "while True:")),
        test_supervisor.test_a_flood_that_means_nothing_gets_no_longer_turns_than_others,
        r"assert \d+ <= 64",
    ),
    *(
        Defence(
            f"the wire: {name}", remove, test_wire.test_what_is_out_of_bounds_is_refused, says, {"changes": changes}
        )
        for name, remove, says, changes in (
            ("no unknown fields", lenient("forbid_unknown_fields=True, ", ""), NOT_RAISED, {"unknown": 1}),
            (
                "texts have a bound",
                lenient("max_length=MAX_CONTEXT", "min_length=0"),
                NOT_RAISED,
                {"prefix": "x" * (wire.MAX_CONTEXT + 1)},
            ),
            (
                "lists have a bound",
                lenient(r"\.\.\.\], Meta\(max_length=\w+\)", "...], Meta()"),
                NOT_RAISED,
                {"neighbours": [{"name": "n", "text": ""}] * 33},
            ),
            ("numbers have a bound", lenient(r", le=[^)]+", ""), NOT_RAISED, {"deadline_ms": float("inf")}),
            ("numbers are not negative", lenient(r"ge=0, ", ""), NOT_RAISED, {"seed": -1}),
        )
    ),
    Defence(
        "a message is one frame",
        cut(Front, "receive", (" if len(frames) == 2 else None", "")),
        test_supervisor.test_of_a_message_with_too_many_frames_nothing_is_read,
        r"Hello\(.* is None",
    ),
    Defence(
        "nothing counts before a hello",
        cut(Ledger, "hear", ("return known is not None", "return True")),
        test_supervisor.test_nothing_counts_before_a_hello,
        r"\[Status\(.* == \[\]",
    ),
    Defence(
        "another protocol is not spoken",
        cut(Supervisor, "_greet", ("hello.protocol != wire.PROTOCOL", "False")),
        test_supervisor.test_a_client_of_another_protocol_is_told_and_has_no_lease,
        "== .'failed', True",
    ),
    Defence(
        "a job is taken once",
        cut(Supervisor, "_admit", ("if self._ledger.find(peer, request.job):", "if False:")),
        test_supervisor.test_a_job_that_is_sent_twice_is_taken_once,
        "assert 2 == 1",
    ),
    Defence(
        "a client that is silent is gone (leases)",
        cut(Ledger, "silent", ("now - peer.heard > lease_s", "False")),
        test_supervisor.test_a_client_that_says_nothing_for_three_seconds_is_gone_with_its_jobs,
        "assert not ",
    ),
    *(
        Defence(
            f"a client that reads nothing is given up: {name}",
            put(fronts, limit, 1 << 30),
            test_supervisor.test_a_client_that_reads_nothing_is_given_up,
            r"\[\] == \[b'peer'\]",
            {"jobs": jobs, "seconds": seconds},
        )
        for name, limit, jobs, seconds in (
            ("after so long", "MAX_SLOW_S", 1, fronts.MAX_SLOW_S),
            ("after so much", "MAX_BACKLOG", fronts.MAX_BACKLOG, 0.0),
        )
    ),
    Defence(
        "a client has so many jobs",
        put(ledgers, "MAX_JOBS_OF_PEER", 1 << 30),
        test_processes.test_a_client_has_eight_jobs_at_most_and_may_replace_them,
        "isinstance",
    ),
    Defence(
        "all clients have so many jobs",
        put(ledgers, "MAX_JOBS", 1 << 30),
        test_processes.test_paired_machines_take_no_place_of_a_client_of_this_one,
        r"assert \d+ == ",
    ),
    Defence(
        "there are so many clients",
        put(ledgers, "MAX_PEERS", 1 << 30),
        test_processes.test_paired_machines_take_no_place_of_a_client_of_this_one,
        r"assert .* == ",
    ),
    Defence(
        "paired machines have places of their own",
        put(ledgers, "ELSEWHERE", 1),
        test_processes.test_paired_machines_take_no_place_of_a_client_of_this_one,
        r"assert \d+ == ",
    ),
    Defence(
        "of a document the newest job waits",
        cut(Ledger, "supersede", ("del own[key]", "pass")),
        test_processes.test_while_jobs_wait_the_newest_of_a_document_and_kind_takes_the_place_of_the_older,
        r"assert \[.*\] == \[",
    ),
    Defence(
        "a text that has stopped the engine twice is refused",
        cut(Ledger, "admit", ("if self._poison(request, now):", "if False:")),
        test_processes.test_a_text_is_refused_whatever_draft_or_seed_comes_with_it,
        "isinstance",
    ),
    # What a project says of itself
    Defence(
        "no rule of a project takes long",
        put(globs, "_spec", partial(GitIgnoreSpec.from_lines, backend="simple")),
        test_privacy.test_no_rule_of_a_project_takes_long,
        "this rule takes long",
        {"rule": "*a" * 30 + "b", "path": "a" * 250, "hidden": "a" * 40 + "b"},
    ),
    Defence(
        "where rules cannot be followed all is hidden",
        cut(Ignore, "hides", ("return True", "return False")),
        test_privacy.test_where_the_rules_of_a_project_cannot_be_followed_all_its_files_are_hidden,
        "assert False",
        {"rules": None},
    ),
    Defence(
        "a setting of an untrusted workspace reveals nothing",
        cut(Files, "__init__", ("if not trusted:", "if False:")),
        test_files.test_of_a_workspace_that_is_not_trusted_no_setting_reveals_what_is_hidden,
        "assert False",
    ),
    Defence(
        "a text that has stopped the engine is refused for a while only",
        put(ledgers, "SUSPECT_S", float("inf")),
        test_supervisor.test_a_text_that_stopped_the_engine_twice_is_let_in_again_after_ten_minutes,
        "True, False, False",
    ),
    Defence(
        "of such texts so many are remembered",
        put(ledgers, "MAX_SUSPECTS", 1 << 30),
        test_supervisor.test_of_the_texts_that_stopped_the_engine_the_latest_256_are_remembered,
        "assert False",
    ),
    # The worker
    Defence(
        "a worker that cannot be killed holds up nobody",
        cut(child.Child, "stop", ("left.wait(wait_s)", "left.wait(2)")),
        test_processes.test_beside_a_worker_that_cannot_be_killed_there_is_no_other_and_nobody_waits,
        "assert .* < 1.0",
    ),
    Defence(
        "there are never two workers",
        cut(child.Child, "start_if_due", ("and self.undead:", "and False:")),
        test_processes.test_beside_a_worker_that_cannot_be_killed_there_is_no_other_and_nobody_waits,
        r"assert \('loading', \d+\) == ",
    ),
    Defence(
        "a worker that makes no progress is killed",
        cut(child.Child, "death", ("elif self._hung(now, live):", "elif False:")),
        test_processes.test_how_long_a_worker_may_be_silent_depends_on_the_machine,
        "None == 'made no progress and was killed'",
        {"step": 0.03, "most": 2.5, "made": 0, "live": True},
    ),
    Defence(
        "time in which the engine does not run is nobody's silence",
        cut(Clock, "now", ("max(0.0, self._last - last - LAPSE_S)", "0.0")),
        test_processes.test_time_stands_still_with_its_process,
        "< 0.3",
    ),
    Defence(
        "a worker that goes on and never answers is replaced",
        put(Ledger, "overdue", lambda *_: False),
        test_supervisor.test_a_worker_that_goes_on_and_never_answers_is_replaced_and_its_jobs_are_answered,
        r"== \(132 <= 131\)",
    ),
    Defence(
        "an answer that breaks the contract ends its job",
        cut(Supervisor, "_relay", ("self._give_up(peer, frame)", "")),
        test_supervisor.test_an_answer_that_nobody_can_read_ends_its_job_and_no_other,
        "not enough values to unpack",
    ),
    *(
        Defence(
            f"a worker that always ends is not always started: {name}",
            remove,
            test_supervisor.test_a_worker_that_always_ends_is_started_after_pauses_then_not_for_a_minute,
            says,
        )
        for name, remove, says in (
            ("pauses", put(child, "BACKOFF_S", (0.0, 0.0)), r"assert \d+ is None"),
            ("the circuit", cut(child.Child, "_plan_restart", ("recent >= QUICK_CRASHES", "False")), "'loading'"),
            ("for a minute", put(child, "CIRCUIT_S", 0.0), r"\[True, .*\] == \[False, True\]"),
            ("and no longer", put(child, "CIRCUIT_S", 1e9), r"\[False, False\] == \[False, True\]"),
        )
    ),
    Defence(
        "a model that nobody uses is unloaded",
        cut(Supervisor, "_look_at_the_clock", ("now - self._last_job > self._settings.unload_s", "False")),
        test_supervisor.test_a_model_that_nobody_asks_for_five_minutes_is_unloaded,
        "'ready' == 'idle'",
    ),
    Defence(
        "where memory has run out half as many jobs run together",
        cut(Faults, "out_of_memory", ("jobs // 2", "jobs")),
        test_faults.test_it_is_half_of_those_that_ran_together_that_run_on,
        "assert 5 == 2",
    ),
    Defence(
        "a worker that fails too often makes room for another",
        cut(Faults, "count", ("if len(self._when) == FAULTS and", "if False and")),
        test_faults.test_three_faults_in_a_minute_ask_for_another_process,
        NOT_RAISED,
    ),
    Defence(
        "an engine that cannot work ends",
        put(supervisor, "FAILED_EXIT_S", float("inf")),
        test_supervisor.test_an_engine_that_cannot_work_ends_when_its_clients_have_left,
        "assert False",
    ),
    Defence(
        "a second signal ends at once",
        cut(Supervisor, "_catch_signals", ("if self._stop_asked:", "if False:")),
        test_supervisor.test_a_second_signal_ends_at_once,
        r"\[\] == \[143\]",
    ),
    # Folders and files of ours
    Defence(
        "one process is the engine (flock)",
        put(fcntl, "flock", lambda *_: None),
        test_processes.test_one_process_at_a_time_is_the_engine,
        "is None",
    ),
    Defence(
        "an engine removes no socket but its own",
        cut(Front, "close", ("(found.st_ino, found.st_dev) == (self._bound.st_ino, self._bound.st_dev)", "True")),
        test_supervisor.test_an_engine_that_ends_leaves_the_socket_of_the_next_one,
        "False, False",
    ),
    Defence(
        "a process that has taken over a pid is not killed",
        cut(rendezvous, "kill", ("if started(holder.pid) != holder.started:", "if False:")),
        test_supervisor.test_a_process_that_has_taken_over_a_pid_is_not_killed,
        r"\[True, .*\] == \[False, True\]",
    ),
    Defence(
        "the sockets are the user's own (umask)",
        cut(supervisor, "serve", ("os.umask(0o077)", "")),
        test_supervisor.test_the_socket_is_the_users_own_whatever_others_may_read_by_default,
        r"\['0o[1-7]+'\] == \['0o0'\]",
    ),
    Defence(
        "a log has a limit",
        put(launch, "MAX_LOG", 1 << 60),
        test_supervisor.test_a_log_that_has_grown_long_is_put_aside,
        "== 0",
    ),
    Defence(
        "a folder is no link",
        cut(paths, "checked", ("if stat.S_ISLNK(state.st_mode):", "if False:")),
        test_processes.test_a_linked_folder_is_refused,
        "is open to other users",  # every link of Linux is: without this defence the wrong sentence is said
    ),
    Defence(
        "a folder is the user's own",
        cut(paths, "checked", ("if state.st_uid != os.getuid():", "if False:")),
        test_processes.test_a_folder_of_another_user_is_refused,
        NOT_RAISED,
    ),
    *(
        Defence(
            name,
            remove,
            test_remote.test_keys_that_others_could_reach_are_refused,
            r"assert 0 == 1",
            {"name": file, "mode": mode, "remedy": ""},
        )
        for name, remove, file, mode in (
            ("a folder is of mode 0700", cut(paths, "checked", ("if state.st_mode & 0o077:", "if False:")), "", 0o750),
            (
                "a key is of mode 0600",
                cut(paths, "read", ("and state.st_mode & 0o077:", "and False:")),
                "secret",
                0o640,
            ),
        )
    ),
    Defence(
        "a key is no link",
        put(paths, "unfollowed", os.open),
        test_remote.test_links_in_the_place_of_keys_are_refused,
        r"assert 0 == 1",
    ),
    # What is run
    Defence(
        "a worker asks to end with its parent (PDEATHSIG)",
        put(test_processes, "CHILD", test_processes.CHILD.replace("die_with(os.getppid());", "")),
        test_processes.test_a_worker_ends_with_its_parent_however_that_ends,
        "assert not True",
    ),
    *(
        Defence(
            f"python -P of {about}",
            remove,
            test_hostile_project.test_no_process_imports_a_file_of_the_project_it_is_started_in,
            "first extra item: 'caesura/__init__.py'",
            {"process": process},
        )
        for about, remove, process in (
            (
                "an engine",
                put(
                    launch, "command", lambda model, device: [sys.executable, "-m", "caesura", "engine", "--foreground"]
                ),
                "engine",
            ),
            ("a worker", put(child, "WORKER", tuple(word for word in child.WORKER if word != "-P")), "worker"),
            (
                "a server",
                lambda patch: patch.setitem(
                    test_hostile_project.PROCESSES, "server", lambda: [sys.executable, "-m", "caesura", "lsp"]
                ),
                "server",
            ),
        )
    ),
    # What a job may hold
    Defence(
        "secrets are covered",
        put(privacy, "masked", as_it_is),
        test_typing.test_secrets_stay_here_and_are_not_proposed,
        "'hunter2' not in",
    ),
    Defence(
        "what was covered is not proposed",
        put(warm, "reveals", lambda *_: False),
        test_typing.test_secrets_stay_here_and_are_not_proposed,
        "== ''",
    ),
    *(
        Defence(f"secrets are covered: {where}", put(module, name, as_it_is), test, says)
        for where, module, name, test, says in (
            ("in other files", outline, "masked", test_neighbours.test_secrets_of_other_files_are_covered, "assert "),
            (
                "in a fill",
                fill,
                "concealed",
                test_fill.test_secrets_do_not_reach_the_engine_and_covers_do_not_reach_the_text,
                "'hunter2' not in",
            ),
            (
                "in a structured edit",
                structured,
                "concealed",
                test_structured.test_secrets_are_covered_beside_the_hole_and_in_what_the_grammar_says_of_it,
                "'hunter2' not in",
            ),
            (
                "in what a structured edit goes by",
                structured,
                "masked",
                test_structured.test_secrets_are_covered_beside_the_hole_and_in_what_the_grammar_says_of_it,
                "'horse' not in",
            ),
            ("in its schema", structured, "masked_schema", test_structured.test_secrets_of_a_schema_are_covered, "=="),
            (
                "in a document's schema",
                privacy,
                "masked_schema",
                test_typing.test_secrets_of_a_schema_stay_here,
                "not in",
            ),
            (
                "in the siblings of a JSON value",
                json_scaffold,
                "masked",
                test_json_edits.test_no_sibling_shows_a_password_to_the_engine,
                "assert ",
            ),
        )
    ),
    *(
        Defence(f"what was covered is not written: {where}", put(module, "reveals", lambda *_: False), test, "==")
        for where, module, test in (
            ("a fill", gaps, test_fill.test_secrets_do_not_reach_the_engine_and_covers_do_not_reach_the_text),
            (
                "a structured edit",
                structured,
                test_structured.test_secrets_are_covered_beside_the_hole_and_in_what_the_grammar_says_of_it,
            ),
        )
    ),
    Defence(
        "half a private key is one",
        put(privacy, "_private_keys", lambda text: []),
        test_privacy.test_half_a_private_key_is_covered_too,
        "assert ",
    ),
    Defence(
        "files that hold secrets are hidden",
        put(privacy, "_HIDDEN", ()),
        test_files.test_hidden_documents,
        "is True",
        {"uri": "/.env", "hidden": True},
    ),
    Defence(
        "a project's own rules reveal nothing",
        cut(
            Ignore,
            "__init__",
            ("(*_HIDDEN, *patterns)", "(*_HIDDEN, *patterns, *rules)"),
        ),
        test_files.test_hidden_documents,
        "is True",
        {"uri": "/.env", "hidden": True},
    ),
    Defence(
        "no file is read where the workspace is not trusted",
        cut(Files, "imported", ("not self._trusted or ", "")),
        test_files.test_of_a_workspace_that_is_not_trusted_only_the_ignore_rules_are_read,
        r"\['a.py'\] == \[\]",
    ),
    Defence(
        "links lead nowhere out of the folders",
        cut(Files, "_read", ("self._folder(real) is None or ", "")),
        test_files.test_nothing_is_read_outside_the_folders,
        r"\['link.py', .*\] == \[\]",
    ),
    Defence(
        "links lead to nothing that is hidden",
        cut(Files, "_read", (" or self._hides(real)", "")),
        test_files.test_a_folder_may_itself_be_a_link,
        r"\['tools.py', 'seen.py'\] == ",
    ),
    Defence(
        "files that are read have a limit",
        cut(Texts, "read", (" or about.st_size > self._largest", "")),
        test_files.test_what_is_long_or_no_text_or_no_file_is_not_read,
        r"\['long.py', 'good.py'\] == ",
    ),
    *(
        Defence(
            f"only a file is read: {where}",
            cut(Texts, "read", ("not stat.S_ISREG(about.st_mode) or ", "")),
            test,
            says,
        )
        for where, test, says in (
            ("a neighbour", test_files.test_what_has_become_no_file_since_it_was_found_is_not_read, "'' is None"),
            (
                "a schema",
                test_schema_files.test_a_schema_that_the_user_names_and_that_is_of_no_use_is_refused,
                "did not",
            ),
        )
    ),
    Defence(
        "schemas lie in the workspace",
        cut(
            SchemaFiles,
            "_of_document",
            ("if not any(path.is_relative_to(folder.resolve()) for folder in self._folders):", "if False:"),
        ),
        test_schema_files.test_a_name_that_leads_nowhere_is_told_and_the_rest_goes_on,
        "is None",
        {"name": "../schemas/out.json", "note": "outside of the workspace"},
    ),
    Defence(
        "no schema is read where the workspace is not trusted",
        cut(SchemaFiles, "_of_document", ("if not self._trusted:", "if False:")),
        test_schema_files.test_nothing_is_read_where_the_workspace_is_not_trusted,
        "assert ",
    ),
    Defence(
        "what is sent elsewhere lies in a folder that was named, links followed",
        cut(Remote, "covers", ("os.path.realpath(path)", "path")),
        test_remote.test_only_folders_that_were_named_use_another_machine,
        "assert .* is ",
    ),
    # Models
    Defence(
        "a model's files are those of its manifest (sha256)",
        cut(weights, "verify", ("if ahead.done(sha256, path) != expected:", "if False:")),
        test_weights.test_a_changed_file_is_named,
        NOT_RAISED,
        {"folder": lambda request: test_weights.whole(request.getfixturevalue("tmp_path"))},
    ),
    Defence(
        "a model has no file beside those of its manifest",
        cut(weights, "verify", ("if unlisted:", "if False:")),
        test_weights.test_a_file_that_the_manifest_does_not_name_is_named,
        NOT_RAISED,
        {"folder": lambda request: test_weights.whole(request.getfixturevalue("tmp_path"))},
    ),
    Defence(
        "a model is verified before it is loaded",
        cut(block_llama, "load", ("weights.verify(folder)", "")),
        test_models.test_a_damaged_file_is_a_sentence,
        NOT_RAISED,
        {"damage": test_models.flipped},
    ),
    Defence(
        "a model's family is one that we know",
        cut(models, "read_config", ("if family not in FAMILIES:", "if False:")),
        test_models.test_a_config_that_does_not_fit_is_a_sentence,
        r"\.\./x",
        {"config": {"model_type": "../x"}, "says": "not supported"},
    ),
    Defence(
        "a tokenizer's file has a limit",
        put(tokenizer, "MAX_FILE", 1 << 60),
        test_tokenizer.test_a_huge_file_is_not_read,
        "did not match",
    ),
    *(
        Defence(
            f"a tokenizer's file: {name}",
            remove,
            test_tokenizer.test_a_hostile_file_is_refused_in_a_sentence,
            says,
            {"case": case},
        )
        for name, remove, case, says in (
            (
                "a text has the same tokens each time",
                lenient("dropout: None", "dropout: float | None", tokenizer_file),
                "other tokens each time",
                NOT_RAISED,
            ),
            (
                "an added token is short",
                lenient("max_length=MAX_CONTENT", "max_length=1 << 60", tokenizer_file),
                "an added token of a megabyte",
                NOT_RAISED,
            ),
            (
                "an id is of one token",
                cut(tokenizer_file, "read", ("if len(set(file", "if False and len(set(file")),
                "two tokens with one id",
                f"{NOT_RAISED}|changes the text",  # whichever of the two the library takes
            ),
            (
                "an added token has the id that it says",
                cut(Tokenizer, "__init__", ("if self.find(token.content) != token.id:", "if False:")),
                "an added token in the place of another",
                NOT_RAISED,
            ),
        )
    ),
    Defence(
        "a panic of the tokenizers library is an error",
        cut(Tokenizer, "__init__", ("except BaseException as error:", "except Exception as error:")),
        test_tokenizer.test_a_panic_of_the_library_is_a_sentence,
        "did not match",
    ),
    *(
        Defence(
            name,
            remove,
            test_models.test_a_config_that_does_not_fit_is_a_sentence,
            says,
            {"config": config, "says": sentence},
        )
        for name, remove, says, config, sentence in (
            (
                "a model has no more layers than tensors",
                cut(block_llama, "load", ("if shape.num_layers > len(base):", "if False:")),
                "did not match",
                {"num_layers": 999},
                "has 999 layers",
            ),
            (
                "a size is finite",
                cut(block_llama.Config, "read", (", ArithmeticError", "")),
                "infinity",
                {"num_layers": float("inf")},
                "config.json is damaged",
            ),
            (
                "a size is a number",
                cut(block_llama.Config, "read", ("0 < size <= 2**31", "not size <= 0")),
                NOT_RAISED,
                {"rms_norm_eps": float("nan")},
                "above 0",
            ),
        )
    ),
    Defence(
        "a checkpoint's index names files of its folder",
        put(checkpoint, "FILE", re.compile(".*")),
        test_checkpoint.test_a_broken_checkpoint_is_refused_in_a_sentence,
        "did not match",
        {
            "case": "index leaves the folder",
            "folder": lambda request: test_checkpoint.whole(request.getfixturevalue("tmp_path")),
        },
    ),
    Defence(
        "a checkpoint's index has a limit",
        cut(checkpoint, "_index", ("> MAX_INDEX", "> 1 << 60")),
        test_checkpoint.test_a_huge_index_is_not_read,
        NOT_RAISED,
        {"folder": lambda request: test_checkpoint.whole(request.getfixturevalue("tmp_path"))},
    ),
    Defence(
        "text becomes no control token",
        put(Tokenizer, "_spelled", lambda self, ids: list(ids)),
        test_tokenizer.test_text_never_becomes_a_control_token_that_merges_lead_to,
        "changes the text that it reads",  # which is noticed when it is loaded
    ),
    Defence(
        "a machine computes a model as it was made (canary)",
        cut(canary, "check", ("if not off <= TOLERANCE:", "if False:")),
        test_canary.test_a_model_that_says_something_else_than_it_said_is_refused,
        NOT_RAISED,
    ),
    # Edits, requests and the engine in any order. The seed is one that finds it soon; which orders it draws depends
    # on the modules that are loaded.
    *(
        Defence(
            f"in any order, {name}",
            remove,
            test_interleavings.interleave,
            says,
            {"cases": 3000, "steps": 20, "batch": batch, "phases": (Phase.generate,)},
        )
        for name, remove, says, batch in (
            (
                "an answer is for the newest text",
                cut(Typing, "_answer", ("if not asked.current:", "if False:")),
                "of another text",
                3,
            ),
            (
                "a canvas that is superseded is stopped",
                cut(WarmCanvas, "stop", ("self.task.cancel()", "pass")),
                "no job is left behind",
                1,
            ),
            (
                "what is shown and fits no more is cleared",
                cut(Typing, "_superseded", ("shown is None or shown.fits", "True")),
                "a ghost that no longer fits is cleared",
                2,
            ),
            (
                "who waits is told that the engine died",
                cut(Canvases, "_run", ("canvas.over = True\n        cursor.wake()", "canvas.over = True")),
                "nobody waits for nothing",
                1,
            ),
            (
                "a canvas is for the text around it",
                cut(Canvases, "_known", ("if not (canvas.stale and self._differs(canvas, opened))", "if True")),
                "it was computed for this text",
                3,
            ),
            (
                "a request has its deadline",
                cut(Typing, "_ready", ("None if part else asked.late", "None")),
                "what can be shown at the deadline is",
                5,
            ),
        )
    ),
    # What is shown and written
    Defence(
        "what is shown is not exchanged",
        cut(WarmCanvas, "propose", ("if kept and kept.insert:", "if False:")),
        test_typing.test_what_is_shown_is_not_exchanged_for_a_better_candidate,
        "'other' == 'a'",
    ),
    Defence(
        "an engine that dies takes nothing away",
        cut(Typing, "_answer", ("canvas.lost and ", "False and ")),
        test_typing.test_a_lost_engine_takes_nothing_away_that_is_shown,
        r"insert=''.* == Kept",
    ),
    Defence(
        "an answer that is no numbers ends its job",
        cut(Scheduler, "step", ("if not all(work.sound for work in live.works)", "if False")),
        test_faults.test_what_is_no_number_ends_its_job_and_is_never_shown,
        r"Done\(.* == Failed\(",
        {
            "faulty": lambda request: (test_faults.Faulty(request.getfixturevalue("tiny")), "threshold"),
            "hole": test_faults.LINE,
            "after": 0,
        },
    ),
    Defence(
        "control and bidirectional characters are not proposed",
        put(completion, "visible", lambda text, *_: text),
        test_completion.test_python,
        r"== '1'",
        {"source": "x = |\n", "fill": "1\u200b\u202e\x07\ufeff", "inserted": "1"},
    ),
    *(
        Defence(name, remove, test_secrets.test_an_error_is_logged_by_type_and_place_and_a_crash_writes_nothing, says)
        for name, remove, says in (
            ("a log says no word of an error", put(logs, "traced", repr), "'CONFIDENTIAL' not in"),
            (
                "nor of one that nobody catches",
                cut(logs, "begin", ("sys.excepthook =", "_ =")),
                "'CRITICAL not caught' in",
            ),
            (
                "nor of one in a thread",
                cut(logs, "begin", ("threading.excepthook = _in_thread", "")),
                "'ERROR not caught in a thread' in",
            ),
        )
    ),
    *(
        Defence(
            "a crash leaves no image of memory",
            cut(logs, "begin", ("(int(most != 0), most)", "(most, most)")),
            test_secrets.test_an_error_is_logged_by_type_and_place_and_a_crash_writes_nothing,
            "== 1",
        )
        for _, most in (resource.getrlimit(resource.RLIMIT_CORE),)
        if most  # else the system keeps all from it
    ),
    Defence(
        "a file is replaced whole",
        cut(
            Source,
            "_replace",
            ('handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")', "name = target"),
            ('os.fdopen(handle, "wb")', 'target.open("wb")'),
        ),
        test_cli.test_a_write_that_fails_in_the_middle_leaves_the_file_as_it_was,
        "No such file",  # the source is gone
    ),
    Defence(
        "a file that has changed is not written",
        cut(Source, "_replace", ("if target.read_bytes() != self.data:", "if False:")),
        test_cli.test_a_file_that_has_changed_since_it_was_read_is_not_written,
        NOT_RAISED,
    ),
]


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> Iterator[None]:
    """What was computed without a defence is not what later tests get."""
    yield
    for module in [module for name, module in sys.modules.items() if name.startswith("caesura.")]:
        for function in vars(module).values():
            if hasattr(function, "cache_clear"):
                function.cache_clear()
            elif isinstance(function, Recent | Remembered):
                function.clear()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("defence", DEFENCES, ids=lambda defence: defence.name)
def test_a_defence_that_is_removed_is_missed(
    defence: Defence, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {name: _argument(defence, name, request) for name in inspect.signature(defence.test).parameters}
    defence.remove(monkeypatch)
    with pytest.raises((Exception, pytest.fail.Exception), match=f"(?s){defence.says}"):
        _run(defence.test, arguments)


def _run(test: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    outcome = test(**arguments)
    if asyncio.iscoroutine(outcome):
        asyncio.run(outcome)


def _argument(defence: Defence, name: str, request: pytest.FixtureRequest) -> Any:
    if name not in defence.arguments:
        return request.getfixturevalue(name)
    value = defence.arguments[name]
    return value(request) if callable(value) and name in ("folder", "faulty") else value


def test_every_defence_has_a_name_of_its_own() -> None:
    assert len({defence.name for defence in DEFENCES}) == len(DEFENCES)
