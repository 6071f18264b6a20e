"""`jaxcomm bench --peer mpi`: between processes that mpirun starts, and errors if a part of MPI is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import types

import jax
import pytest

from jaxcomm.cli import bench_peers
from jaxcomm.errors import JaxcommError
from tests.cli import documents

PROCESSES = 2


@pytest.fixture
def one_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: PROCESSES)
    monkeypatch.setattr(jax, "local_device_count", lambda: 1)


def test_a_missing_mpi_is_named_with_what_to_install(one_of_two: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    with pytest.raises(JaxcommError, match=r"--peer mpi4py needs mpi4py and an MPI library: .*\n  Cure: .*pip install"):
        bench_peers.by_mpi4py("all_reduce")


def test_processes_that_mpi_did_not_start_are_refused(one_of_two: None, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = types.SimpleNamespace(COMM_WORLD=types.SimpleNamespace(rank=0, size=1))
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", alone)  # MPI sees one process, as under jaxcomm launch
    with pytest.raises(JaxcommError, match=r"this process is 0 of 1 to MPI and 0 of 2 to JAX\.\n  Cure: mpirun -n 4"):
        bench_peers.by_mpi("all_reduce")


def test_processes_of_several_devices_are_refused(one_of_two: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "local_device_count", lambda: 2)
    with pytest.raises(JaxcommError, match="this one has 2 devices"):
        bench_peers.by_mpi("all_reduce")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("peer", "collective"), [("mpi", "all_reduce"), ("mpi", "all_gather"), ("mpi4py", "all_reduce")]
)
def test_mpi_sums_as_jaxcomm_does(peer: str, collective: str) -> None:
    module = {"mpi": "mpi4jax", "mpi4py": "mpi4py"}[peer]
    if shutil.which("mpirun") is None or importlib.util.find_spec(module) is None:
        pytest.skip(f"needs mpirun and {module}, which are not here")
    words = ["bench", "--peer", peer, "--collective", collective, "--sizes", "1KiB,64KiB", "--rounds", "1", "--json"]
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    done = subprocess.run(
        ["mpirun", *root, "--oversubscribe", "-n", str(PROCESSES), sys.executable, "-m", "jaxcomm.cli", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={name: value for name, value in os.environ.items() if name != "XLA_FLAGS"},
    )
    assert done.returncode == 0, done.stderr
    found = documents.document(done.stdout[done.stdout.index("{") :])
    assert (found["peer"], found["devices"]) == (peer, PROCESSES)
    for row in found["rows"]:
        assert row["wrong"] == 0
        assert row["ratio"] == pytest.approx(row["peer_s"] / row["jaxcomm_s"])
