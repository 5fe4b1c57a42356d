"""A plugin of pytest for gpu/test: tests that have passed on this machine are written down as they do, in the file that
PASSED names, and not run again. A run may be stopped at any time."""

import os
from pathlib import Path

import pytest

PASSED = Path(os.environ["PASSED"])


class Passes:
    """Writes down what passes. Only the first process of several has it."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            with PASSED.open("a") as file:
                file.write(f"{report.nodeid}\n")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Passes())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What had passed before this run is left out, in all its processes."""
    known = set(PASSED.with_suffix(".before").read_text().splitlines())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in known])
    items[:] = [item for item in items if item.nodeid not in known]
