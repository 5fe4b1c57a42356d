"""Only the package list, so that a new sub-package cannot be forgotten (tests/test_package.py builds the wheel)."""

from setuptools import find_packages, setup

FOLDERS = {"caesura": "caesura", "server": "caesura.server", "engine": "caesura.engine", "kernels": "caesura.kernels"}
setup(packages=[*FOLDERS.values(), *(f"{name}.{p}" for folder, name in FOLDERS.items() for p in find_packages(folder))])
