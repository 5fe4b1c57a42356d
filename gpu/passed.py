"""A plugin of pytest for gpu/test: tests that have passed on this machine are written down as they do, in the file that
PASSED names, and not run again. A run may be stopped at any time."""

import os
from pathlib import Path

import pytest

PASSED = Path(os.environ["PASSED"])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed and "PYTEST_XDIST_WORKER" not in os.environ:
        with PASSED.open("a") as file:
            file.write(f"{report.nodeid}\n")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What had passed before this run is left out, in all its processes."""
    known = set(PASSED.with_suffix(".before").read_text().splitlines())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in known])
    items[:] = [item for item in items if item.nodeid not in known]
