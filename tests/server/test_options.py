"""Settings as an editor sends them, and the documentation that is made from their definition."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from caesura.commands import settings
from caesura.server.options import Options, parse

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "configuration.md"
EXTENSION = ROOT / "editors" / "vscode" / "package.json"


def test_the_document_has_the_table_that_the_settings_make() -> None:
    found = re.search(r"options\.py and put.*?-->\n\n(.*?)\n<!-- end", DOCUMENT.read_text(), re.DOTALL)
    assert found
    assert found[1] == settings.table(), "put `settings.table()` into docs/configuration.md"


def test_every_setting_is_described_with_a_default_that_it_accepts() -> None:
    properties = settings.schema()["properties"]
    assert set(properties) == {field.encode_name for field in msgspec.structs.fields(Options)}
    assert all(about["description"] for about in properties.values())
    defaults = {name: about["default"] for name, about in properties.items()}
    assert parse(defaults) == (Options(), [])


def test_the_schema_has_the_bounds_and_refuses_unknown_names() -> None:
    schema = settings.schema()
    assert schema["additionalProperties"] is False
    assert (schema["properties"]["deadlineMs"]["minimum"], schema["properties"]["deadlineMs"]["maximum"]) == (1, 10_000)
    assert set(schema["properties"]["device"]["enum"]) == {"auto", "cpu", "cuda"}


def test_the_extension_for_vs_code_has_every_setting_with_its_default() -> None:
    """But for those that VS Code knows by itself."""
    groups = json.loads(EXTENSION.read_text())["contributes"]["configuration"]
    theirs = {name: about["default"] for group in groups for name, about in group["properties"].items()}
    schema = json.loads(json.dumps(settings.schema()))
    ours = {f"caesura.{name}": about["default"] for name, about in schema["properties"].items()}
    assert set(ours) - set(theirs) == {"caesura.trusted", "caesura.popup"}
    assert {name: theirs[name] for name in set(ours) & set(theirs)} == {
        name: default for name, default in ours.items() if name in theirs
    }


def test_what_names_a_program_a_folder_or_hidden_files_is_set_for_the_machine_that_has_them() -> None:
    """In a remote window VS Code takes such a setting from the remote's tab. A workspace may say which model, if it is
    trusted, and never what is run or what is taken back from the files that are hidden."""
    package = json.loads(EXTENSION.read_text())
    groups = package["contributes"]["configuration"]
    scopes = {name: about["scope"] for group in groups for name, about in group["properties"].items()}
    assert {name: scope for name, scope in scopes.items() if scope != "window"} == {
        "caesura.command": "machine",
        "caesura.install.package": "machine",
        "caesura.install.pipArguments": "machine",
        "caesura.model": "machine-overridable",
        "caesura.device": "machine-overridable",
        "caesura.ignore": "application",
    }
    untrusted = package["capabilities"]["untrustedWorkspaces"]["restrictedConfigurations"]
    assert {name for name, scope in scopes.items() if scope != "window"} <= set(untrusted)


@pytest.mark.parametrize(
    ("name", "value", "default"),
    [
        ("enable", "yes", "true"),
        ("device", "tpu", '"auto"'),
        ("deadlineMs", 0, "250.0"),
        ("minConfidence", 2, "null"),
        ("languages", {"python": 1}, "{}"),
        ("ignore", "*.py", "[]"),
    ],
)
def test_a_wrong_value_keeps_its_default_and_is_reported(name: str, value: Any, default: str) -> None:
    options, [problem] = parse({name: value, "maxTokens": 8})
    assert options == Options(max_tokens=8)
    assert problem.startswith(f"Setting '{name}' keeps its default {default}: ")


def test_an_unknown_name_is_reported_and_what_copilots_plugins_send_is_not() -> None:
    sent = {"editorInfo": {"name": "Neovim"}, "editorPluginInfo": {"name": "copilot.lua"}, "debounce": 75}
    assert parse(sent) == (Options(), ["Unknown setting 'debounce' was ignored."])


def test_settings_that_are_no_object_are_reported() -> None:
    assert parse(None) == (Options(), [])
    assert parse([1]) == (Options(), ["The settings are not an object; all defaults are used."])


def test_languages_are_off_by_name_or_all_others() -> None:
    assert parse({"languages": {"markdown": False}})[0].allows("python")
    only = parse({"languages": {"*": False, "python": True}})[0]
    assert (only.allows("python"), only.allows("markdown")) == (True, False)
