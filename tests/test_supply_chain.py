"""What is installed is what was tested, whatever an index serves; and what Caesura is made of is written down."""

import importlib.util
import json
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
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
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"[<>=\[; ]", dependency)[0] for dependency in project["dependencies"]}
    assert needed <= set(lock)
    both = set(lock) & set(tested)
    assert needed <= both
    assert {name: lock[name] for name in both} == {name: tested[name] for name in both}


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
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [Requirement(line) for line in project["dependencies"]]
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


CODE_FROM_DATA = re.compile(
    r"\btorch\.load\b|\b(recv|send)_pyobj\b|trust_remote_code|\b(un)?pickl(e|er)\b|\bmarshal\b|\byaml\.load\b|\b(eval|exec)\("
)


def test_nothing_that_is_shipped_makes_code_of_data() -> None:
    shipped = [file for folder in ("caesura", "server", "engine", "kernels") for file in (ROOT / folder).rglob("*.py")]
    assert len(shipped) > 100
    found = {
        f"{file.relative_to(ROOT)}: {match[0]}"
        for file in shipped
        if (match := CODE_FROM_DATA.search(re.sub(r'(?s)""".*?"""|#[^\n]*|\.eval\(', "", file.read_text())))
    }
    assert not found
