"""The import rules of the design: which folder may know of which, and what does no I/O and reads no clock."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "caesura": "caesura",
    **{f"caesura.{name}": name for name in ("server", "engine", "kernels", "cluster")},
}


def name_of(path: Path) -> str:
    """The import name of a file of the tree."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[0] == "caesura" else ("caesura", *parts))


MODULES = {name_of(path): path for folder in FOLDERS.values() for path in sorted((ROOT / folder).rglob("*.py"))}
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def imported(name: str, *, lazy: bool = True) -> Iterator[str]:
    """Everything a module imports; `lazy` includes imports inside functions."""
    nodes = ast.walk(TREES[name]) if lazy else iter(TREES[name].body)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def inside(module: str, *packages: str) -> bool:
    return any(module == p or module.startswith(f"{p}.") for p in packages)


def offenders(where: tuple[str, ...], banned: tuple[str, ...], besides: tuple[str, ...] = ()) -> list[str]:
    return [
        f"{name} imports {module}"
        for name in MODULES
        if inside(name, *where) and not inside(name, *besides)
        for module in imported(name)
        if inside(module, *banned)
    ]


HANDLERS = ("caesura.server.lsp", "caesura.server.app")
HEAVY = ("torch", "safetensors", "tokenizers", "numpy", "triton")


@pytest.mark.parametrize(
    ("where", "banned", "besides"),
    [
        (("caesura.server",), (*HEAVY, "caesura.engine", "caesura.kernels"), ()),
        (
            (*(f"caesura.{name}" for name in ("wire", "paths", "ipc", "model_store", "automata", "schema")),),
            HEAVY,
            (),
        ),
        (
            ("caesura.wire", "caesura.automata", "caesura.schema"),
            ("caesura.engine", "caesura.kernels", "caesura.server", "caesura.commands", "caesura.ipc", "zmq"),
            (),
        ),
        (("caesura.cli", "caesura.commands", "caesura.serve"), (*HEAVY, "caesura.kernels"), ()),
        (("caesura.engine",), ("caesura.server", "caesura.commands", "pygls", "lsprotocol", "tree_sitter"), ()),
        (("caesura.kernels",), ("caesura.engine", "caesura.server", "caesura.wire", "caesura.commands"), ()),
        (("caesura",), ("pygls", "lsprotocol"), HANDLERS),
        # Whatever answers a job, the server's parts see the same Protocol.
        (
            ("caesura.server",),
            tuple(f"caesura.client.{name}" for name in ("shared", "paired", "launch", "connection")),
            HANDLERS[1:],
        ),
        (("caesura",), ("huggingface_hub",), ("caesura.hub",)),
        (("caesura",), ("httpx2",), ("caesura.hub", "caesura.client.backends")),
        (("caesura",), ("starlette", "uvicorn"), ("caesura.serve", "caesura.demo", "caesura.cluster")),
        # A team's engine: one command knows of it, and nothing else of what it needs.
        (("caesura",), ("caesura.cluster",), ("caesura.cluster", "caesura.commands.team")),
        (("caesura",), ("ray", "grpc"), ("caesura.cluster",)),
        (("caesura",), ("pickle", "marshal", "shelve", "dill", "cloudpickle"), ()),
        (("caesura",), ("server", "engine", "kernels", "tests", "training"), ()),
    ],
)
def test_imports_point_one_way(where: tuple[str, ...], banned: tuple[str, ...], besides: tuple[str, ...]) -> None:
    assert offenders(where, banned, besides) == []


def test_only_the_commands_that_run_the_engine_or_look_into_a_checkpoint_import_it() -> None:
    found = offenders(("caesura.cli", "caesura.commands"), ("caesura.engine",))
    assert {line.split()[0] for line in found} <= {f"caesura.commands.{name}" for name in ("engine", "models", "team")}


# Inside the server and the client: what each part may import of the others.

BELOW = {"infill", "structured", "context", "text", "languages", "options", "client", "wire", "schema"}
ROOMS: dict[str, set[str]] = {
    "caesura.ipc": {"wire", "paths", "model_store", "__version__"},
    "caesura.client": {"ipc", "wire", "model_store", "paths", "fim_formats", "__version__"},
    "caesura.serve": {"infill", "context", "languages", "options", "client", "wire", "fim_formats", "paths"},
    "caesura.cluster": {"engine", "ipc", "wire", "logs", "paths", "model_store", "serve"},
    "caesura.server.options": {"wire", "model_store"},
    "caesura.server.languages": {"names", "words"},
    "caesura.server.names": {"libraries"},
    "caesura.server.libraries": set(),
    "caesura.server.words": set(),
    "caesura.server.text": {"languages", "words"},
    "caesura.server.context": {"text", "languages", "names", "options", "wire", "schema", "recent", "ipc", "paths"},
    "caesura.server.structured": {"context", "text", "languages", "libraries", "wire", "schema"},
    "caesura.server.infill": {
        *("context", "structured", "text", "languages", "names", "options", "client", "wire", "schema")
    },
    "caesura.server.records": {"client", "paths", "ipc"},
    "caesura.server.ghost": {*BELOW, "records"},
    "caesura.server.fills": BELOW,
    "caesura.server.next_edit": BELOW - {"structured", "schema"},
    "caesura.server.session": {*BELOW, "ghost", "fills", "next_edit", "records", "ipc", "__version__"},
    "caesura.server.lsp": {*BELOW - {"infill", "languages", "schema"}, "ghost", "fills", "next_edit", "session"},
}

ANYWHERE = {"server", "characters"}  # the package itself, and what a person does not see


def room(module: str) -> str:
    return module.removeprefix("caesura.").removeprefix("server.").partition(".")[0]


@pytest.mark.parametrize("name", ROOMS)
def test_a_part_of_the_server_imports_what_it_may(name: str) -> None:
    used = {other for module in MODULES if inside(module, name) for other in imported(module)}
    assert {room(other) for other in used if other.startswith("caesura.")} - ANYWHERE <= {*ROOMS[name], room(name)}


def test_jobs_are_built_in_one_place() -> None:
    found = {
        name
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "Infill"
        if not inside(name, "caesura.engine")
    }
    assert found == {"caesura.server.infill.job"}


TWICE = {  # names that mean the same twice
    **dict.fromkeys(("Config", "Shape", "Weights"), "what a family reads of its own files"),
    **dict.fromkeys(("KvRows", "Layers", "Norm"), "layers in C and the same in PyTorch"),
    "Scheduler": "what the worker asks of it, and it",
}


def test_a_public_type_has_a_name_of_its_own() -> None:
    found = Counter[str]()
    for tree in TREES.values():
        for node in tree.body:
            match node:
                case ast.ClassDef(name) | ast.Assign(targets=[ast.Name(name)]):
                    found[name] += bool(re.fullmatch(r"[A-Z]\w*[a-z]\w*", name))
    twice = {name for name, times in found.items() if times > 1}
    assert twice == set(TWICE)


@pytest.mark.parametrize("folder", ["caesura", "engine", "kernels", "server", "cluster", "tests"])
def test_no_folder_has_more_files_than_one_can_survey(folder: str) -> None:
    for place in (ROOT / folder, *(path for path in (ROOT / folder).rglob("*") if path.is_dir())):
        sources = [path for path in place.iterdir() if path.suffix in (".py", ".c", ".h")]
        assert len(sources) <= 15, place


def test_a_script_has_a_name_of_its_own() -> None:
    """Scripts import what lies beside them, and one test process sees the folders of all of them."""
    found = Counter(path.name for folder in ("bench", "gpu", "training") for path in (ROOT / folder).glob("*.py"))
    assert [name for name, times in found.items() if times > 1] == []


# Pure: no I/O, no clock

PURE = [
    "caesura.characters",
    *(f"caesura.engine.{name}" for name in ("scheduler", "faults", "length", "noise", "cache")),
    *(
        name
        for name in MODULES
        if inside(name, *(f"caesura.engine.{folder}" for folder in ("methods", "canvas", "samplers", "grammar")))
    ),
    *(f"caesura.server.context.{name}" for name in ("context", "recall", "scopes", "secrets", "unbound")),
    "caesura.server.names",
    *(f"caesura.server.text.{name}" for name in ("json", "lexer", "notebooks")),
    *(name for name in MODULES if inside(name, "caesura.server.infill")),
    "caesura.server.ghost.backoff",
    *(
        f"caesura.server.next_edit.{name}"
        for name in ("gates", "history", "proposals", "rename", "source", "tokens", "transfer")
    ),
    *(f"caesura.cluster.{name}" for name in ("budget", "models", "router", "sessions")),
    "caesura.server.fills.task",
    *(f"caesura.server.structured.{name}" for name in ("offer", "edits", "imports", "scalars")),
    *(
        name
        for name in MODULES
        if inside(name, *(f"caesura.server.structured.{form}" for form in ("json", "markdown")))
    ),
]
IO_MODULES = (
    *("os", "io", "sys", "time", "datetime", "socket", "select", "selectors", "subprocess", "signal", "threading"),
    *("asyncio", "logging", "shutil", "tempfile", "glob", "urllib", "http", "zmq", "random", "secrets", "uuid"),
    *("multiprocessing", "mmap", "platformdirs", "sqlite3", "ctypes"),
)
IO_NAMES = {"open", "print", "input", "exec", "eval", "breakpoint", "__import__"}
IO_ATTRIBUTES = {
    *("read_text", "write_text", "read_bytes", "write_bytes", "unlink", "mkdir", "monotonic", "perf_counter"),
    *("time_ns", "sleep", "recv", "send", "connect", "bind", "from_file", "safe_open", "getenv", "environ"),
}
REGISTRIES = ("caesura.engine.samplers", "caesura.engine.methods")  # list their own files, and import one by its name


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_do_no_io_and_read_no_clock(name: str) -> None:
    banned = (*IO_MODULES, *(() if name in REGISTRIES else ("pathlib", "importlib")))
    found = [f"imports {module}" for module in imported(name) if inside(module, *banned)]
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IO_NAMES:
            found.append(f"line {node.lineno} calls {node.func.id}")
        if isinstance(node, ast.Attribute) and node.attr in IO_ATTRIBUTES:
            found.append(f"line {node.lineno} uses .{node.attr}")
    assert found == []


@pytest.mark.parametrize("name", [n for n in PURE if inside(n, "caesura.engine")])
def test_randomness_has_a_generator(name: str) -> None:
    """Nothing draws from the global generator: a batch gives each canvas what it would get alone."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            draws = node.func.attr in ("rand", "randn", "randint", "randperm", "multinomial", "bernoulli", "normal_")
            assert not draws or "generator" in {k.arg for k in node.keywords}, f"{name} line {node.lineno}"


def test_nothing_waits_by_the_wall_clock() -> None:
    """Which a user, a server of time or a suspended machine sets: it is for records alone."""
    wall = {"time", "time_ns", "localtime", "gmtime", "ctime", "now", "utcnow", "today"}
    found = {
        name
        for name in MODULES
        for node in ast.walk(TREES[name])
        if isinstance(node, ast.Attribute) and node.attr in wall and isinstance(node.value, ast.Name)
        if node.value.id in ("time", "datetime", "date")
    }
    assert found == {
        "caesura.engine.weights.tiles.kept",  # compares it with the times of files
        "caesura.server.records.trace",
        "caesura.server.records.stats",
        "caesura.cluster.watch.traces",
        "caesura.commands.doctor",
        "caesura.commands.settings",
    }
    assert not any("time.time" in imported(name) for name in MODULES)


def test_clients_and_engine_meet_at_sockets_of_two_kinds() -> None:
    """ROUTER and DEALER: no message goes to whoever listens, and none takes another's place. PAIR is the link between a
    supervisor and its own worker, REP what libzmq asks who may come in."""
    kinds = {"PUB", "SUB", "XPUB", "XSUB", "REQ", "REP", "ROUTER", "DEALER", "PUSH", "PULL", "PAIR", "STREAM"}
    asked = {
        (node.attr, name.rpartition(".")[2])
        for name in MODULES
        for node in ast.walk(TREES[name])
        if isinstance(node, ast.Attribute) and node.attr in {*kinds, "ROUTER_HANDOVER"}
    }
    assert asked == {
        *{("ROUTER", "clients"), ("DEALER", "connection"), ("DEALER", "admission")},  # which knocks at its own door
        *{("REP", "admission"), ("PAIR", "link")},
    }


# What a process really loads

STARTS = {
    "caesura.cli": (*HEAVY, "zmq", "pygls", "caesura.engine", "caesura.server"),
    "caesura.commands.serve": (*HEAVY, "httpx2", "caesura.engine", "caesura.kernels"),
    "caesura.commands.fill": (*HEAVY, "caesura.engine", "caesura.kernels"),
    "caesura.commands.engine": (*HEAVY, "zmq", "tree_sitter", "caesura.engine", "caesura.server"),
    "caesura.engine.supervisor.supervisor": (
        *HEAVY,
        "pygls",
        "lsprotocol",
        "tree_sitter",
        "caesura.server",
        "caesura.kernels",
    ),
    "caesura.engine.worker": ("torch", "gguf", "pygls", "lsprotocol", "tree_sitter", "caesura.server"),
    "caesura.wire": (*HEAVY, "zmq", "caesura.engine", "caesura.server", "caesura.kernels"),
    "caesura.engine.scheduler": ("pygls", "lsprotocol", "tree_sitter", "caesura.server", "zmq"),
}


@pytest.mark.parametrize("name", STARTS)
def test_importing_loads_nothing_it_must_not(name: str) -> None:
    code = f"import {name}, sys; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert [m for m in done.stdout.split() if inside(m, *STARTS[name])] == []
