"""Only the package list, so that a new sub-package cannot be forgotten (tests/test_package.py builds the wheel)."""

from setuptools import find_packages, setup

TOP = ("server", "engine", "kernels")
setup(packages=["caesura", *(f"caesura.{t}" for t in TOP), *(f"caesura.{t}.{p}" for t in TOP for p in find_packages(t))])
