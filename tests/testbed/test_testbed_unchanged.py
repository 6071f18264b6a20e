"""Unchanged programs between hosts: over two rails, and when a host's network is cut. Needs root."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from jaxcomm.backend import jaxlib_variables
from jaxcomm.cli import main
from tests.backend.programs import CASES

pytestmark = [pytest.mark.root, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
RAILS = "".join(f'[[rails]]\nname = "eth{i}"\nmbit = {mbit}\n' for i, mbit in enumerate((400, 100)))
HOSTS = '[[hosts]]\nname = "a"\nprocesses = 2\n[[hosts]]\nname = "b"\n'
SUMS = """
import jax, numpy as np, time
from jax.experimental import multihost_utils

jax.distributed.initialize()
begun = time.monotonic()
try:
    while time.monotonic() < begun + 90:
        multihost_utils.process_allgather(np.ones(1 << 10, np.float32))
    print("nothing happened")
except Exception as error:
    print("error:", *str(error).split())
"""


@pytest.fixture(autouse=True)
def unchanged_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # the tests' XLA_FLAGS set eight devices
    for name, value in jaxlib_variables.variables().items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_values_over_two_unlike_rails_are_those_of_numpy(
    transport: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXCOMM_TRANSPORT", transport)
    file = tmp_path / "rails.toml"
    file.write_text(RAILS + HOSTS.replace('"b"', '"b"\nprocesses = 2'))
    job = [sys.executable, "-m", "tests.backend.programs"]
    assert main(["testbed", "run", str(file), "--json", "--time-limit", "240", "--", *job]) == 0
    shown = capfd.readouterr()
    reports = [json.loads(line.partition("@report ")[2]) for line in shown.err.splitlines() if "@report " in line]
    assert {each["case"]: each["error"] for each in reports} == dict.fromkeys(CASES, "")
    assert len(reports) == 4 * len(CASES)
    sent = dict.fromkeys(("eth0", "eth1"), 0)
    for link in json.loads(shown.out)["links"]:
        sent[link["rail"]] += link["sent_bytes"]
    assert min(sent.values()) > 1 << 18, sent  # more bytes than handshakes


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_a_cut_network_is_an_error_that_names_the_host(
    transport: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXCOMM_TRANSPORT", transport)
    program, file = tmp_path / "sums.py", tmp_path / "cut.toml"
    program.write_text(SUMS)
    file.write_text(RAILS + HOSTS + "".join(f'[[cuts]]\nhost = "b"\nrail = "eth{i}"\nat_s = 20\n' for i in (0, 1)))
    main(["testbed", "run", str(file), "--time-limit", "150", "--", sys.executable, str(program)])
    shown = capfd.readouterr()
    errors = [line for line in (shown.out + shown.err).splitlines() if "] error: " in line]
    on_a = [line for line in errors if line.startswith(("[0 a]", "[1 a]"))]
    assert len(on_a) == 2, shown
    for line in on_a:
        # Both rails are cut. Which one ends last, and so gives the reason, depends on what was in flight.
        silent = "its host has not answered for" in line or "a rail to it is silent" in line
        assert "rank 2" in line and silent, line
