"""NCCL from Python, as far as no GPU is needed: finding it, the custom call, and what goes wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jaxcomm import schedules
from jaxcomm.errors import PlanError
from jaxcomm.gpu import core, nccl

ROOT = Path(__file__).parents[2]
built = pytest.mark.skipif(not core.is_built(), reason="built without CUDA; JAXCOMM_CUDA=ON make test builds it")


def in_a_process(script: str) -> str:
    """A script's output; NCCL is opened once in a process."""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_without_the_cuda_core_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(core.CUDA, "path", tmp_path / "missing.so")
    assert nccl.why_off() == "jaxcomm was built without CUDA"


@built
def test_without_nccl_the_reason_is_one_line():
    script = (
        "from jaxcomm.gpu import nccl\n"
        "nccl.path = lambda: b'/nowhere/libnccl.so.2'\n"
        "print(nccl.why_off())\n"
        "try:\n    nccl.version()\nexcept Exception as error:\n    print(error)"
    )
    reason, *error = in_a_process(script).splitlines()
    assert reason.startswith("no NCCL: /nowhere/libnccl.so.2: cannot open shared object file")
    assert error == [f"{reason}.", "  Cure: pip install 'jax[cuda13]'."]


@built
@pytest.mark.skipif(not nccl.path(), reason="NVIDIA's wheel of NCCL is not installed")
def test_the_copy_that_is_loaded_already_is_used():
    script = (
        "import ctypes\n"
        "from jaxcomm.gpu import nccl\n"
        "path = nccl.path().decode()\n"
        "ctypes.CDLL(path)\n"
        "nccl.path = lambda: b'/nowhere/libnccl.so.2'\n"
        "print(nccl.version() >= (2, 28, 0), len(nccl.unique_id()))\n"
        "maps = {line.split()[-1] for line in open('/proc/self/maps') if 'libnccl' in line}\n"
        "print(len(maps))"
    )
    assert in_a_process(script).split() == ["True", "128", "1"]


@built
@pytest.mark.skipif(not nccl.path(), reason="NVIDIA's wheel of NCCL is not installed")
def test_joining_without_a_device_is_an_error_and_not_a_crash():
    if core.why_off() is None:
        pytest.skip("there is a device")
    script = (
        "from jaxcomm.gpu import nccl\n"
        "try:\n    nccl.join('data', ranks=1, rank=0, id=nccl.unique_id(), device=0)\n"
        "except Exception as error:\n    print(type(error).__name__, error)"
    )
    assert in_a_process(script).startswith("JaxcommError NCCL, rank 0 of 1: choosing the device: ")


@built
def test_messages_are_registered_by_the_number_of_ranks() -> None:
    four, eight = schedules.ring(4), schedules.straggler(8, 7, 9)
    name = nccl._registered((four, eight))
    assert name == nccl._registered((four, eight)) != nccl._registered((four,))
    with pytest.raises(PlanError, match="word 0: the magic number"):
        core.CUDA.call("nccl_register", "damaged/2", b"no message....", 12, raises=PlanError)
