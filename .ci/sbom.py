"""What Caesura is made of, as a CycloneDX document: `make sbom` pipes in what an installation holds.

Added are the hashes of requirements.lock and what this repository ships besides its own code; left out are tools and
addresses, which say nothing about the product.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def locked(text: str) -> dict[str, list[str]]:
    """`name==version` of requirements.lock -> its sha256 hashes."""
    found = re.findall(r"^([\w.-]+==[\w.+-]+).*?((?:\s+--hash=sha256:\w+\s*\\?)+)", text, re.MULTILINE | re.DOTALL)
    return {requirement.lower(): re.findall(r"sha256:(\w+)", hashes) for requirement, hashes in found}


def shipped() -> list[dict[str, Any]]:
    """The model and the demo's editor."""
    files = json.loads((ROOT / "engine" / "embedded" / "manifest.json").read_text())["files"]
    monaco = json.loads((ROOT / "editors" / "monaco" / "package.json").read_text())
    version = {**monaco.get("dependencies", {}), **monaco.get("devDependencies", {})}["monaco-editor"]
    apache, mit = ([{"license": {"id": name}}] for name in ("Apache-2.0", "MIT"))
    model = {
        "type": "machine-learning-model",
        "bom-ref": "embedded-model",
        "name": "Caesura's embedded model, from SmolLM2-135M-Instruct",
        "licenses": apache,
        "components": [
            {"type": "file", "name": name, "hashes": [{"alg": "SHA-256", "content": sha256}]}
            for name, sha256 in sorted(files.items())
        ],
    }
    editor = {
        "type": "library",
        "bom-ref": "monaco-editor",
        "name": "monaco-editor",
        "version": version,
        "licenses": mit,
    }
    return [model, editor]


def complete(bom: dict[str, Any], lock: str) -> dict[str, Any]:
    hashes = locked(lock)
    parts = []
    for part in bom["components"]:
        known = hashes.get(f"{part['name']}=={part['version'].partition('+')[0]}".lower().replace("_", "-"))
        if known is None:
            continue  # of the virtual environment itself
        part.pop("externalReferences", None)
        part["bom-ref"] = part["purl"]
        part["properties"] = [{"name": "caesura:sha256", "value": value} for value in sorted(known)]
        parts.append(part)
    root = {key: value for key, value in bom["metadata"]["component"].items() if key != "externalReferences"}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": bom["specVersion"],
        "version": 1,
        "metadata": {"component": root},
        "components": [*shipped(), *parts],
    }


if __name__ == "__main__":
    document = complete(json.load(sys.stdin), (ROOT / "requirements.lock").read_text())
    print(json.dumps(document, indent=1))
