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
MODELS = {"coder": "Qwen2.5-Coder-0.5B-Instruct", "small": "SmolLM2-135M-Instruct"}  # by name, what each is made from


def locked(text: str) -> dict[str, list[str]]:
    """`name==version` of requirements.lock -> its sha256 hashes."""
    found = re.findall(r"^([\w.-]+==[\w.+-]+).*?((?:\s+--hash=sha256:\w+\s*\\?)+)", text, re.MULTILINE | re.DOTALL)
    return {requirement.lower(): re.findall(r"sha256:(\w+)", hashes) for requirement, hashes in found}


def shipped() -> list[dict[str, Any]]:
    """The models and the demo's editor."""
    monaco = json.loads((ROOT / "editors" / "monaco" / "package.json").read_text())
    version = {**monaco.get("dependencies", {}), **monaco.get("devDependencies", {})}["monaco-editor"]
    editor = {
        "type": "library",
        "bom-ref": "monaco-editor",
        "name": "monaco-editor",
        "version": version,
        "licenses": [{"license": {"id": "MIT"}}],
    }
    found = [(name, base) for name, base in MODELS.items() if _manifest(name).is_file()]
    return [*(_model(name, base) for name, base in found), editor]


def _manifest(name: str) -> Path:
    return ROOT / "models" / name / f"caesura_{name}" / "manifest.json"


def _model(name: str, base: str) -> dict[str, Any]:
    files = json.loads(_manifest(name).read_text())["files"]
    return {
        "type": "machine-learning-model",
        "bom-ref": f"caesura-{name}",
        "name": f"Caesura's model {name}, from {base}",
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "components": [
            {"type": "file", "name": file, "hashes": [{"alg": "SHA-256", "content": sha256}]}
            for file, sha256 in sorted(files.items())
        ],
    }


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
