"""On PYTHONPATH this makes a Python as a GPU machine has it (gpu/README.md): Caesura is not installed, and of what it
needs only what is there or travels can be imported."""

import sys
from collections.abc import Sequence

LACKS = {
    *(
        "gguf",
        "httpx2",
        "jsonschema",
        "keyring",
        "lsprotocol",
        "openai",
        "pygls",
        "pytest_asyncio",
        "pytest_lsp",
        "ray",
    ),
    *("re2", "starlette", "tornado", "tree_sitter", "uvicorn", "zmq"),
}


class Refusal:
    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        if name.partition(".")[0] in LACKS:
            raise ModuleNotFoundError(f"a GPU machine has no {name}", name=name)


sys.meta_path[:] = [Refusal(), *(f for f in sys.meta_path if "__editable__" not in getattr(f, "__module__", ""))]
