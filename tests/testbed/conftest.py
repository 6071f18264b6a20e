"""Skips the tests that make a testbed if the machine cannot run testbeds."""

from __future__ import annotations

import functools

import pytest

from jaxcomm import testbed


@functools.cache
def lacking() -> str:
    return ", ".join(each.name for each in testbed.requirements() if each.cure)


@pytest.fixture(autouse=True)
def _machine_can(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("root") and lacking():
        pytest.skip(f"a testbed needs {lacking()}")
