"""NCCL from Python, as far as no GPU is needed: finding it, the custom call, and what goes wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxcomm import schedules
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi import cuda, nccl

ROOT = Path(__file__).parent.parent
built = pytest.mark.skipif(not cuda.is_built(), reason="built without CUDA; JAXCOMM_CUDA=ON make test builds it")


def in_a_process(script: str) -> str:
    """What a script prints; NCCL is opened once in a process."""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_without_the_cuda_core_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(cuda, "_LIBRARY", tmp_path / "missing.so")
    assert nccl.why_off() == "jaxcomm was built without CUDA"


@built
def test_without_nccl_the_reason_is_one_line():
    script = (
        "from jaxcomm.ffi import nccl\n"
        "nccl.path = lambda: b'/nowhere/libnccl.so.2'\n"
        "print(nccl.why_off())\n"
        "try:\n    nccl.version()\nexcept Exception as error:\n    print(error)"
    )
    reason, *error = in_a_process(script).splitlines()
    assert reason.startswith("no NCCL: /nowhere/libnccl.so.2: cannot open shared object file")
    assert error == [f"{reason}.", "  Cure: pip install 'jaxcomm[cuda13]'."]


@built
@pytest.mark.skipif(not nccl.path(), reason="NVIDIA's wheel of NCCL is not installed")
def test_the_copy_that_is_loaded_already_is_used():
    script = (
        "import ctypes\n"
        "from jaxcomm.ffi import nccl\n"
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
    if cuda.why_off() is None:
        pytest.skip("there is a device")
    script = (
        "from jaxcomm.ffi import nccl\n"
        "try:\n    nccl.join('data', ranks=1, rank=0, ids={'': nccl.unique_id()}, deadline_s=5.0)\n"
        "except Exception as error:\n    print(type(error).__name__, error)"
    )
    assert in_a_process(script).startswith("JaxcommError messages: choosing the device: ")


@built
@pytest.mark.parametrize("ranks", [2, 5])
def test_the_call_is_lowered_without_a_device(ranks):
    def step(x, y):
        over_rails = nccl.all_reduce({"x": x, "y": y}, schedules.ring(ranks), "data", shares=(3, 1), reduction="max")
        return nccl.all_reduce(over_rails, schedules.ring(ranks), "data", iteration=2)

    x, y = jnp.ones(8), jnp.ones((2, 3), jnp.bfloat16)
    text = jax.jit(step).trace(x, y).lower(lowering_platforms=("cuda",)).as_text()
    assert f"@{nccl.TARGET}(" in text
    assert "has_side_effect = true" in text
    for attribute in ('group = "data"', "iteration = 2 : i64", 'reduction = "sum"', 'what = "psum"', 'what = "pmax"'):
        assert attribute in text
    assert "shares = dense<[3.000000e+00, 1.000000e+00]> : tensor<2xf64>" in text
    assert text.count("output_operand_alias<") == 4
    assert nccl.register_messages((schedules.ring(ranks),)) in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 4}, "rank is 4 of 4"),
        ({"ids": {}}, "ids names no rail"),
        ({"ids": {"IB": b"short"}}, r"ids\['IB'\] has 5 bytes, not 128"),
        ({"partitions": [[0, 0, 1]]}, r"partitions\[0\] has 3 ranks, not 4"),
    ],
    ids=["rank", "no rail", "id", "partition"],
)
def test_what_cannot_be_joined_is_refused_before_nccl_is_asked(change, message):
    arguments = {"ranks": 4, "rank": 0, "ids": {"": bytes(128)}, **change}
    with pytest.raises(JaxcommError, match=f"group 'data': {message}.\n  Cure: give every rank the same"):
        nccl.join("data", **arguments)


@pytest.mark.parametrize("shares", [(), (0.0, 0.0), (1.0, -1.0), (float("nan"),), (float("inf"), 1.0)])
def test_shares_that_cannot_be_are_refused(shares):
    with pytest.raises(JaxcommError, match=r"shares are \[.*\]; they must be finite, not negative, and not all 0"):
        nccl.all_reduce(jnp.ones(8), schedules.ring(2), "data", shares=shares)


def test_a_group_of_the_period_has_one_rail():
    with pytest.raises(JaxcommError, match="on the first rail alone"):
        nccl.all_reduce(jnp.ones(8), schedules.ring(2), "data", iteration=0, shares=(1.0, 1.0))


@built
def test_only_who_has_joined_can_go_on_without_others():
    with pytest.raises(JaxcommError, match="the device has not joined it"):
        nccl.shrink("nobody", gone=[1])


def test_the_ranks_of_a_host_find_each_other_on_one_board_that_leaves_no_file():
    mine, other = nccl.Board("0123"), nccl.Board("0123")
    with mine.shared() as file, other.shared() as same:
        assert file == same
        Path(file.decode()).touch()
    assert not Path(file.decode()).exists()
    assert mine.without([2, 1]) == other.without([1, 2]) != mine.without([1])
