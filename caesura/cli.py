"""The command line: the parser of all commands. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 nothing is sure enough
for `--strict`.

Each command is a function in `caesura.commands`, imported when it is called, so that `caesura lsp` starts fast.
"""

import argparse
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import caesura
from caesura import arguments
from caesura.characters import shown
from caesura.client import backends

Add = Callable[..., argparse.ArgumentParser]  # `add_parser` of subparsers

FORMS = ("int8", "int4", "fp8", "nvfp4")
WAS_SAMPLER = ("verify", "left_to_right")  # methods that --sampler took before --method existed


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    _prepare_streams()
    try:
        code = _run(words)
    except SystemExit as ended:  # `--help`, wrong usage, the end of `caesura lsp`
        code = int(ended.code or 0)
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at its end
        if not code and not isinstance(error, BrokenPipeError):  # `caesura ... | head` is no failure to speak of
            print(f"caesura: The output cannot be written: {shown(error.strerror)}.", file=sys.stderr)
        return code or 1
    return code


def _prepare_streams() -> None:
    """Replace a standard stream that is closed by an empty one, and let the others take all characters."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # as `>&-` leaves it
            # It takes the free descriptor, so that no other file does.
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 (it stays open)
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape", "backslashreplace"):
            # One sign for one on a terminal, where lines have a width; elsewhere, nothing is lost.
            stream.reconfigure(errors="replace" if stream.isatty() else "backslashreplace")


def _run(words: Sequence[str] | None) -> int:
    parser = _parser()
    options = parser.parse_args(words)
    if not options.run:
        parser.print_help()
        return 0
    if getattr(options, "sampler", None) in WAS_SAMPLER and not options.method:
        print(f"caesura: {options.sampler} is a method now: use --method {options.sampler}.", file=sys.stderr)
        options.method, options.sampler = options.sampler, None
    module, _, function = options.run.partition(":")
    command: Callable[[argparse.Namespace], None] = getattr(
        importlib.import_module(f"caesura.commands.{module}"), function
    )
    try:
        command(options)
    except BrokenPipeError:  # `main` discards what is left
        return 1
    except Exception as error:
        from caesura.commands import Unsure, explain

        sentence = explain(error)
        if sentence is None:
            raise
        print(f"caesura: {shown(sentence)}", file=sys.stderr)
        return 3 if isinstance(error, Unsure) else 1
    except KeyboardInterrupt:
        print("caesura: interrupted.", file=sys.stderr)
        return 1
    return 0


class _Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviated options, since a typo of one could be another."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def parse_known_args(self, *given: Any, **options: Any) -> Any:
        """Refuse unknown arguments here, where the error shows the usage of the command."""
        found, unknown = super().parse_known_args(*given, **options)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="caesura", description="Fills gaps in text while you type.")
    parser.set_defaults(run="")
    parser.add_argument("--version", action="version", version=f"caesura {caesura.__version__}")
    add = parser.add_subparsers(title="commands", metavar="COMMAND").add_parser
    for command in (
        _lsp,
        _fill,
        _holes,
        _edit,
        _eval,
        _demo,
        _serve,
        _engine,
        _pair,
        _backend,
        _team,
        _status,
        _stop,
        _doctor,
        _stats,
        _settings,
        _models,
    ):
        command(add)
    return parser


def _lsp(add: Add) -> None:
    lsp = add("lsp", help="the language server, on stdin and stdout")
    lsp.add_argument(
        "--tcp",
        type=arguments.port,
        nargs="?",
        const=0,
        metavar="PORT",
        help="serve one client on loopback, with a token, instead of stdin",
    )
    lsp.set_defaults(run="serve:lsp")


def _fill(add: Add) -> None:
    fill = add("fill", help="fill one gap of a file")
    arguments.add_file(fill)
    fill.add_argument(
        "--at", required=True, type=arguments.position, metavar="LINE:COL", help="from 1, columns in characters"
    )
    fill.add_argument(
        "--to", type=arguments.position, metavar="LINE:COL", help="replace the text up to here (default: insert)"
    )
    fill.add_argument("--watch", action="store_true", help="show the canvas while it resolves")
    fill.add_argument("--write", action="store_true", help="write the fill into the file")
    arguments.add_certainty(fill)
    arguments.add_generation(fill)
    fill.set_defaults(run="fill:fill")


def _holes(add: Add) -> None:
    holes = add("holes", help="fill every marker of a file, together")
    arguments.add_file(holes)
    holes.add_argument("--marker", default="<FILL>", type=arguments.marker, metavar="TEXT", help="default: %(default)s")
    holes.add_argument("--write", action="store_true", help="write the fills into the file")
    arguments.add_certainty(holes)
    arguments.add_generation(holes)
    holes.set_defaults(run="fill:holes")


def _edit(add: Add) -> None:
    edit = add("edit", help="edit JSON, Markdown, YAML or TOML so that it stays valid")
    arguments.add_file(edit)
    edit.add_argument(
        "--at", required=True, type=arguments.position, metavar="LINE:COL", help="from 1, columns in characters"
    )
    edit.add_argument(
        "--to", type=arguments.position, metavar="LINE:COL", help="select up to here (default: nothing is selected)"
    )
    edit.add_argument("--schema", metavar="SCHEMA.json", help="default: the one that the file names in $schema")
    edit.add_argument(
        "--offer",
        default=0,
        type=arguments.offer,
        metavar="TITLE|N",
        help="the edit, by its title or its number in --list (default: 1)",
    )
    what = edit.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="list the possible edits and change nothing")
    what.add_argument("--write", action="store_true", help="write the edit into the file")
    arguments.add_certainty(edit)
    arguments.add_generation(edit)
    edit.set_defaults(run="edit:edit")


def _eval(add: Add) -> None:
    evaluate = add("eval", help="complete every case of a JSON Lines file; resumes after an interruption")
    evaluate.add_argument("cases", metavar="CASES.jsonl")
    evaluate.add_argument("--out", required=True, metavar="COMPLETIONS.jsonl")
    evaluate.add_argument(
        "--as",
        dest="route",
        choices=("ghost", "fill"),
        default="ghost",
        help="as ghost text, with what is shown of it, or as a fill that is asked for (default: %(default)s)",
    )
    arguments.add_generation(evaluate, json=False)
    evaluate.set_defaults(run="eval:run")


def _demo(add: Add) -> None:
    demo = add("demo", help="a page that shows the canvas step by step, next to the same gap filled left to right")
    demo.add_argument(
        "file", nargs="?", metavar="FILE", help="a text to fill in addition to the examples; it is never changed"
    )
    arguments.add_anyway(demo)
    demo.add_argument("--port", type=arguments.port, default=0, metavar="N", help="default: a free port")
    demo.add_argument("--no-browser", action="store_true", help="only print the address")
    arguments.add_model(demo)
    demo.set_defaults(run="serve:demo")


def _serve(add: Add) -> None:
    serve = add("serve", help="answer editors' plugins that speak HTTP, on loopback, with a token")
    serve.add_argument(
        "--port", type=arguments.port, default=8012, metavar="N", help="default: %(default)s; 0: one that is free"
    )
    arguments.add_model(serve)
    serve.set_defaults(run="serve:http")


def _engine(add: Add) -> None:
    engine = add("engine", help="start the engine that all editors share")
    arguments.add_model(engine)
    engine.add_argument(
        "--quantise", choices=FORMS, help="quantise float weights: int8 or int4 on a CPU, fp8 or nvfp4 on a GPU"
    )
    engine.add_argument("--foreground", action="store_true", help="run the engine in this process")
    engine.add_argument(
        "--listen",
        type=arguments.own_address,
        metavar="ADDRESS:PORT",
        help="run an engine for paired machines, at one address of this machine",
    )
    engine.set_defaults(run="engine:run")


def _pair(add: Add) -> None:
    pair = add("pair", help="use the engine of another machine of yours, for folders that you name")
    pair.set_defaults(run="pair:show")
    add_pair = pair.add_subparsers(
        metavar="allow KEY | revoke NAME | with HOST:PORT KEY | use FOLDER | forget NAME"
    ).add_parser
    allow = _pair_action(
        add_pair("allow", help="there: let another machine use this engine"), "allow", "key", arguments.key
    )
    allow.add_argument("--name", type=arguments.name, metavar="NAME", help="its name (default: the start of its key)")
    _pair_action(add_pair("revoke", help="there: no longer let it in"), "revoke", "name")
    meet = add_pair("with", help="here: add the engine of another machine; nothing is sent there yet")
    meet.add_argument("address", type=arguments.address, metavar="HOST:PORT")
    _pair_action(meet, "meet", "key", arguments.key)
    meet.add_argument("--name", type=arguments.name, metavar="NAME", help="its name (default: its host)")
    use = _pair_action(add_pair("use", help="here: allow it the documents of a folder"), "use", "folder")
    use.add_argument("--engine", metavar="NAME", help="the engine, if there are several")
    _pair_action(add_pair("forget", help="here: no longer allow it"), "forget", "name")


def _pair_action(
    parser: argparse.ArgumentParser, function: str, positional: str, kind: Callable[[str], str] = str
) -> argparse.ArgumentParser:
    parser.add_argument(positional, type=kind, metavar=positional.upper())
    parser.set_defaults(run=f"pair:{function}")
    return parser


def _backend(add: Add) -> None:
    backend = add("backend", help="use an engine of another maker over HTTP, for the folders that you name")
    backend.set_defaults(run="backend:show")
    add = backend.add_subparsers(metavar="add NAME URL | use FOLDER | list | test NAME | remove NAME").add_parser
    new = add("add", help="add or change a backend; sends nothing yet")
    new.add_argument("name", type=arguments.name, metavar="NAME")
    new.add_argument(
        "url", type=arguments.url, metavar="URL", help="https://HOST, or http://ADDRESS:PORT in your own network"
    )
    new.add_argument("--kind", required=True, choices=backends.KINDS)
    new.add_argument("--model", metavar="NAME", help="which of its models (default: its first or only one)")
    new.add_argument("--format", metavar="NAME", help="of fim: write the prompt in this format, as qwen")
    new.add_argument("--key-from", metavar="VARIABLE|keyring", help="where the key is; it is never kept by Caesura")
    new.add_argument("--fallback", action="store_true", help="let the local engine answer while the backend does not")
    new.set_defaults(run="backend:add")
    use = add("use", help="allow sending documents of a folder to it")
    use.add_argument("folder", metavar="FOLDER")
    use.add_argument("--backend", metavar="NAME", help="which one, where there are several")
    use.set_defaults(run="backend:use")
    add("list", help="list backends (the default)").set_defaults(run="backend:show")
    for name, about in (("test", "fill one gap of ours"), ("remove", "forget a backend, or a folder")):
        one = add(name, help=about)
        one.add_argument("name", metavar="NAME")
        one.set_defaults(run=f"backend:{name}")


def _team(add: Add) -> None:
    team = add("team", help="run a team's door, for the users that you invite")
    add_team = team.add_subparsers(
        required=True, metavar="serve CONFIG | invite NAME KEY | revoke NAME|KEY | list"
    ).add_parser
    door = add_team("serve", help="run the door, until Ctrl-C or SIGTERM")
    door.add_argument("config", metavar="CONFIG.toml")
    door.set_defaults(run="team:serve")
    invite = add_team("invite", help="let a user in, by the key that `caesura pair` shows on their machine")
    invite.add_argument("name", type=arguments.name, metavar="NAME")
    invite.add_argument("key", type=arguments.key, metavar="KEY")
    invite.add_argument(
        "--model", type=arguments.team_model, metavar="NAME|PATH", help="one of `models` in CONFIG (default: `model`)"
    )
    invite.set_defaults(run="team:invite")
    out = add_team("revoke", help="end a user's jobs and access")
    out.add_argument("name", metavar="NAME|KEY")
    out.set_defaults(run="team:revoke")
    add_team("list", help="list the invited users").set_defaults(run="team:users")


def _status(add: Add) -> None:
    status = add("status", help="show the running engines")
    arguments.add_json(status)
    status.set_defaults(run="status:status")


def _stop(add: Add) -> None:
    stop = add("stop", help="stop the running engines, but not a team's door")
    stop.set_defaults(run="status:stop")


def _doctor(add: Add) -> None:
    doctor = add("doctor", help="check the installation and the last sessions")
    arguments.add_model(doctor)
    arguments.add_json(doctor)
    doctor.set_defaults(run="doctor:run")


def _stats(add: Add) -> None:
    stats = add("stats", help="show how many suggestions were accepted on this machine")
    stats.add_argument("--reset", action="store_true", help="delete all counts")
    arguments.add_json(stats)
    stats.set_defaults(run="settings:stats")


def _settings(add: Add) -> None:
    settings = add("settings", help="list the language server's settings")
    settings.add_argument("--schema", action="store_true", help="as a JSON schema, for editors that check settings")
    settings.set_defaults(run="settings:settings")


def _models(add: Add) -> None:
    models = add("models", help="list, add, download, check and convert models")
    models.set_defaults(run="models:listing", json=False)
    arguments.add_json(models)
    add = models.add_subparsers(
        metavar="list | add PATH | pull ORG/NAME | show NAME | verify NAME | convert PATH"
    ).add_parser
    _model_action(add("list", help="list names, sizes and speeds (the default)"), "listing")
    more = add("add", help="make a model of yours available by name")
    more.add_argument(
        "--name", type=arguments.name, metavar="NAME", help="its name (default: that of its file or folder)"
    )
    _model_action(more, "add", "path")
    pull = add("pull", help="download a model from a hub; no other command downloads anything")
    pull.add_argument("model", type=arguments.repository, metavar="ORG/NAME[@REV]", help="REV: a branch, tag or commit")
    pull.add_argument("--name", type=arguments.name, metavar="NAME", help="its name (default: NAME)")
    pull.add_argument("--yes", action="store_true", help="agree to its licence, also if that is not a free one")
    arguments.add_json(pull, default=argparse.SUPPRESS)
    pull.set_defaults(run="pull:pull")
    _model_action(add("show", help="show a model's manifest and headers"), "show", "name")
    verify = add("verify", help="check a model's files, tensors and recorded answers")
    verify.add_argument("--record", action="store_true", help="record the answers to a tiny input for later checks")
    _model_action(verify, "verify", "name")
    convert = add("convert", help="quantise a checkpoint of floats: int8 and int4 for a CPU, fp8 and nvfp4 for a GPU")
    convert.add_argument("--to", required=True, choices=FORMS)
    convert.add_argument("--out", metavar="FOLDER", help="default: PATH-FORM, next to it")
    _model_action(convert, "convert", "path")


def _model_action(parser: argparse.ArgumentParser, function: str, *positional: str) -> None:
    for name in positional:
        parser.add_argument(name, metavar=name.upper())
    arguments.add_json(parser, default=argparse.SUPPRESS)  # else it would reset the one in `caesura models --json list`
    parser.set_defaults(run=f"models:{function}")
