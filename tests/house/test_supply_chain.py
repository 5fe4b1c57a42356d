"""What is installed is what was tested, whatever an index serves; and what Caesura is made of is written down."""

import ast
import builtins
import importlib.util
import json
import re
import tomllib
from collections.abc import Collection
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINUX = {"sys_platform": "linux"}  # what the bill is of
PIN = re.compile(r"^([\w.-]+)==([\w.+]+)", re.MULTILINE)


def pins(name: str) -> dict[str, str]:
    return {found[1].lower().replace("_", "-"): found[2] for found in PIN.finditer((ROOT / name).read_text())}


@pytest.fixture(scope="module")
def sbom() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sbom", ROOT / ".ci" / "sbom.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_lock_has_all_that_is_needed_at_the_versions_that_were_tested() -> None:
    lock, tested = pins("requirements.lock"), pins("constraints.txt")
    needed = {re.split(r"[<>=\[; ]", dependency)[0] for dependency in PROJECT["dependencies"]}
    assert needed <= set(lock)
    both = set(lock) & set(tested)
    assert needed <= both
    assert {name: lock[name] for name in both} == {name: tested[name] for name in both}


def installed(name: str, extras: Collection[str], found: dict[str, str]) -> dict[str, str]:
    """The versions of a package and of all that it needs here, added to `found`."""
    package = distribution(name)
    found[name.lower().replace("_", "-")] = package.version
    for needed in map(Requirement, package.requires or []):
        wanted = needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ["", *extras])
        if wanted and needed.name.lower().replace("_", "-") not in found:
            installed(needed.name, needed.extras, found)
    return found


@pytest.mark.cluster
def test_a_teams_door_is_installed_as_it_was_tested() -> None:
    """requirements.lock and the bill are of the plain installation, which has no Ray."""
    tested = pins("constraints.txt")
    found = dict[str, str]()
    for needed in map(Requirement, PROJECT["optional-dependencies"]["cluster"]):
        installed(needed.name, needed.extras, found)
    assert {name: tested.get(name) for name in found} == found
    assert "ray" not in pins("requirements.lock")


def test_every_file_that_may_be_installed_is_known_by_its_hash() -> None:
    requirements = re.split(r"\n(?=\w)", (ROOT / "requirements.lock").read_text())[1:]
    assert len(requirements) == len(pins("requirements.lock"))
    for requirement in requirements:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", requirement), requirement


def test_the_bill_of_materials_is_of_the_locked_set_and_of_what_is_shipped(sbom: ModuleType) -> None:
    bill = json.loads((ROOT / "sbom.json").read_text())
    parts: dict[str, Any] = {part["name"].lower().replace("_", "-"): part for part in bill["components"]}
    lock = pins("requirements.lock")
    for name, part in parts.items():
        if part.get("purl"):
            assert part["version"].partition("+")[0] == lock[name]
            assert part["licenses"], name
    shipped = {part["bom-ref"]: part for part in sbom.shipped()}
    assert {key: part for key, part in ((p["bom-ref"], p) for p in bill["components"]) if key in shipped} == shipped
    needed = [Requirement(line) for line in PROJECT["dependencies"]]
    assert {found.name for found in needed if not found.marker or found.marker.evaluate(LINUX)} <= set(parts)


def test_what_an_environment_has_of_its_own_is_no_part(sbom: ModuleType) -> None:
    def component(name: str, version: str) -> dict[str, Any]:
        return {"name": name, "version": version, "purl": f"pkg:pypi/{name}@{version}", "externalReferences": [{}]}

    environment = {
        "specVersion": "1.6",
        "metadata": {"component": {"name": "caesura", "externalReferences": [{}]}, "tools": {}},
        "components": [component("one", "1.0+cpu"), component("pip", "23.0")],
    }
    lock = "# about\n\none==1.0 ; marker \\\n    --hash=sha256:bb \\\n    --hash=sha256:aa\n"
    found = sbom.complete(environment, lock)
    assert [part["name"] for part in found["components"][len(sbom.shipped()) :]] == ["one"]
    assert [p["value"] for p in found["components"][-1]["properties"]] == ["aa", "bb"]
    assert "externalReferences" not in json.dumps(found)


# Code from data

SHIPPED = [
    file for folder in ("caesura", "server", "engine", "kernels", "cluster") for file in (ROOT / folder).rglob("*.py")
]
MODULES = {  # whose very purpose it is
    *(
        "pickle",
        "_pickle",
        "cPickle",
        "dill",
        "cloudpickle",
        "shelve",
        "marshal",
        "joblib",
        "jsonpickle",
        "pickletools",
    ),
    *(
        "runpy",
        "code",
        "codeop",
        "imp",
        "torch.hub",
        "torch.package",
        "torch.jit.frontend",
        "transformers",
        "diskcache",
    ),
}
NAMES = {
    *("eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec", "builtins.compile"),
    *("builtins.__import__", "importlib.__import__", "os.system", "os.popen", "pty.spawn"),
    *("torch.load", "torch.jit.load", "torch.export.load", "torch.serialization.load", "torch.compiler.load"),
    *("torch.ops.load_library", "torch.classes.load_library", "torch.utils.cpp_extension.load"),
    *("numpy.load", "numpy.lib.npyio.load", "pandas.read_pickle", "multiprocessing.connection.Client"),
    *("yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "yaml.Loader", "yaml.UnsafeLoader"),
}
METHODS = {"recv_pyobj", "send_pyobj", "load_state_dict_from_url", "read_pickle"}  # of whatever object
FLAGS = {"trust_remote_code": False, "allow_pickle": False, "weights_only": True, "shell": False}  # the only value
BY_NAME = "importlib.import_module"  # of a name that is computed


def makes_code(source: str) -> set[str]:
    """What in a source makes code of data, by its full name, whatever it is called there."""
    tree = ast.parse(source)
    known = dict[str, str]()  # what a name of the source stands for
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                known[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
                found |= _banned(alias.name)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                found |= _banned(f"{node.module}.{alias.name}")

    def named(node: ast.AST) -> str:
        if isinstance(node, ast.Name):
            return known.get(node.id, node.id if node.id in dir(builtins) else "")
        if isinstance(node, ast.Attribute):
            return f"{named(node.value)}.{node.attr}"
        if isinstance(node, ast.Call) and named(node.func) == "getattr" and isinstance(node.args[1], ast.Constant):
            return f"{named(node.args[0])}.{node.args[1].value}"
        return ""

    for node in ast.walk(tree):
        found |= _banned(named(node))
        if isinstance(node, ast.Attribute) and node.attr in METHODS:
            found.add(node.attr)
        if isinstance(node, ast.Constant) and node.value in FLAGS:
            found.add(str(node.value))  # a key of a dictionary of arguments
        if isinstance(node, ast.Call):
            given = {key.arg: key.value for key in node.keywords if key.arg in FLAGS}
            found |= {
                str(name) for name, value in given.items() if getattr(value, "value", None) is not FLAGS[str(name)]
            }
            if named(node.func) == BY_NAME and not isinstance(node.args[0], ast.Constant):
                found.add(BY_NAME)
    return found


def _banned(name: str) -> set[str]:
    parts = name.split(".")
    starts = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    return {name} if name in NAMES or starts & MODULES else set()


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import pickle", "pickle"),
        ("def f(x):\n    from dill import loads\n    return loads(x)", "dill.loads"),
        ("import cloudpickle as safe", "cloudpickle"),
        ("import shelve", "shelve"),
        ("import marshal", "marshal"),
        ("from joblib import load", "joblib.load"),
        ("from runpy import run_path", "runpy.run_path"),
        ("import torch\ntorch.load(path)", "torch.load"),
        ("import torch as t\nread = t.load", "torch.load"),
        ("from torch import load\nload(path)", "torch.load"),
        ("from torch import jit\njit.load(path)", "torch.jit.load"),
        ("import torch.jit\ntorch.jit.load(path)", "torch.jit.load"),
        ("import torch\ntorch.hub.load(name)", "torch.hub.load"),
        ("import torch\ngetattr(torch, 'load')(path)", "torch.load"),
        ("import numpy as np\nnp.load(path)", "numpy.load"),
        ("import numpy\nnumpy.lib.format.read_array(f, allow_pickle=True)", "allow_pickle"),
        ("read(f, allow_pickle=wanted)", "allow_pickle"),
        ("read(f, **{'allow_pickle': True})", "allow_pickle"),
        ("read(f, weights_only=False)", "weights_only"),
        ("import yaml\nyaml.load(text)", "yaml.load"),
        ("from yaml import unsafe_load", "yaml.unsafe_load"),
        ("Model.from_pretrained(name, trust_remote_code=True)", "trust_remote_code"),
        ("import transformers", "transformers"),
        ("socket.recv_pyobj()", "recv_pyobj"),
        ("await self.socket.send_pyobj(x)", "send_pyobj"),
        ("eval(text)", "eval"),
        ("run = exec", "exec"),
        ("import builtins\nbuiltins.exec(text)", "builtins.exec"),
        ("compile(text, '', 'exec')", "compile"),
        ("__import__(name)", "__import__"),
        ("from importlib import import_module\nimport_module(name)", "importlib.import_module"),
        ("import subprocess\nsubprocess.run(text, shell=True)", "shell"),
        ("import os\nos.system(text)", "os.system"),
    ],
)
def test_code_from_data_is_found_by_any_name(source: str, name: str) -> None:
    assert name in makes_code(source)


@pytest.mark.parametrize(
    "source",
    [
        "import re\nre.compile(text)",
        "import ast\nast.literal_eval(text)",
        "import torch\nmodel.eval()\ntorch.compile(model)",
        "import json\njson.load(file)",
        "from safetensors import safe_open\nsafe_open(path)",
        "read(f, allow_pickle=False, trust_remote_code=False, weights_only=True, shell=False)",
        "from importlib import import_module\nimport_module('caesura.wire')",
        "'pickle.load, eval(text) and torch.load'  # exec(text)",
        "code = error.code\nload(code)",
    ],
)
def test_what_only_looks_like_it_is_not(source: str) -> None:
    assert makes_code(source) == set()


def test_nothing_that_is_shipped_makes_code_of_data() -> None:
    assert len(SHIPPED) > 100
    found = {str(file.relative_to(ROOT)): made for file in SHIPPED if (made := makes_code(file.read_text()))}
    # Names of our own tables alone, a command's and a grammar's, and of our own files: families, methods, samplers.
    assert found == {
        "caesura/cli.py": {BY_NAME},
        "engine/models/families.py": {BY_NAME},
        "engine/samplers/__init__.py": {BY_NAME},
        "engine/methods/__init__.py": {BY_NAME},
        "server/languages.py": {BY_NAME},
    }
