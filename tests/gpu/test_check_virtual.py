"""The sections of `jaxcomm check` about one GPU, without one: their NumPy reference, and that they find a wrong bit."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from jaxcomm.gpu.checks import devices, kernels, virtual


@pytest.mark.parametrize("name", virtual.MATRIX)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_the_reference_adds_up(name: str, dtype: type) -> None:
    x: NDArray[np.float64] = np.random.default_rng(0).integers(-8, 8, (virtual.RANKS, 1003))
    result = virtual.by_numpy(virtual.MATRIX[name], x.astype(dtype))
    assert (result.astype(np.int64) == x.sum(axis=0)).all()


@pytest.mark.parametrize("dtype", [*virtual.INTEGERS, np.float16, np.complex64])
def test_the_reference_knows_every_type_and_reduction(dtype: type) -> None:
    x = virtual.random(501, dtype, 0)
    assert x.dtype == dtype and (x != virtual.random(501, dtype, 1)).any()
    for reduction, combine in virtual.COMBINE.items():
        if x.dtype.kind == "c" and reduction != "sum":
            continue
        result = virtual.by_numpy(virtual.MATRIX["ring"], x, reduction)
        expected = combine.reduce(x, axis=0, dtype=x.dtype)
        rounding = 2e-2 if x.dtype.kind in "fc" and reduction == "sum" else 0
        assert np.allclose(result, expected, rtol=rounding, atol=rounding)


class ByNumPy(SimpleNamespace):
    """Takes the place of the fused executor in the sections: the reference itself, on a CPU."""

    def __init__(self, wrong: int = 0, spoils: bool = True) -> None:
        super().__init__(calls=0, wrong=wrong, spoils=spoils, by_plan={}, failed=False, limit=60.0)

    def virtual_psum(self, x: jax.Array, schedule: Any, *, reduction: str = "sum", delays_us: Any = None) -> jax.Array:
        def call(x: Any, delays: Any) -> np.ndarray:
            self.calls += 1
            held = np.asarray(x)
            late = float(np.max(delays)) * 1e-6
            site = {"plan": schedule.kind, "bytes": held[0].nbytes, "calls": 0, "arrivals": [], "after_arrival_s": []}
            site = self.by_plan.setdefault((schedule.kind, held[0].nbytes), site)
            site["calls"] += 1
            site["arrivals"].append(list(np.asarray(delays) * 1e-6))
            site["after_arrival_s"].append(1e-3 if schedule.kind == "ring" else 0.5e-3)
            failed = late > self.limit
            self.failed |= failed
            result = virtual.by_numpy(schedule, held, reduction)
            if failed and self.spoils:
                result[:] = np.nan
            result.view(np.uint8)[0, : self.wrong] ^= 1
            return result

        delays = np.zeros(schedule.ranks, np.int32) if delays_us is None else delays_us
        result: jax.Array = jax.pure_callback(call, jax.typeof(x), x, delays)
        return result

    def check(self) -> None:
        if self.failed:
            self.failed = False
            raise virtual.JaxcommError("DeadlineError: psum #2 over 'virtual': rank 3 of 8 has not arrived")

    def set_deadline(self, seconds: float) -> None:
        self.limit = seconds

    def sites(self) -> list[dict[str, Any]]:
        sites: list[dict[str, Any]] = json.loads(json.dumps([*self.by_plan.values()]))
        return sites


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: virtual.MATRIX[name] for name in ("ring", "straggler, n - 1 chunks", "straggler, 4n chunks")}
    monkeypatch.setattr(virtual, "MATRIX", few)
    monkeypatch.setattr(virtual, "SIZES", [1003])
    monkeypatch.setattr(virtual, "FLOATS", (np.float32, ml_dtypes.bfloat16))
    monkeypatch.setattr(virtual, "INTEGERS", (np.int8, np.uint32))
    monkeypatch.setattr(virtual, "CALLS", 3)
    monkeypatch.setattr(virtual, "LATE_BYTES", (1 << 12, 1 << 14))


def rows_of(section: str, executor: ByNumPy, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    monkeypatch.setattr(virtual, "fused", executor)
    return list(virtual.SECTIONS[section]())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("section", ["exact", "late", "deadline"])
def test_an_executor_that_is_right_passes(section: str, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = ByNumPy()
    head, *rows = rows_of(section, executor, monkeypatch)
    assert rows and all(len(row) == len(head) for row in rows)
    if section == "late":
        assert [row[-1] for row in rows] == ["", "pass", "pass"] * 2
        assert {row[2] for row in rows} == {"2.00"}
    if section == "deadline":
        assert rows[0][-1] == "right"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("section", ["exact", "deadline"])
def test_a_wrong_bit_is_found(section: str, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = ByNumPy(wrong=1)
    with pytest.raises(SystemExit, match=r"\d+ wrong"):
        rows_of(section, executor, monkeypatch)


@pytest.mark.usefixtures("small")
def test_a_failed_call_that_hands_out_a_sum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="8000 wrong"):
        rows_of("deadline", ByNumPy(spoils=False), monkeypatch)


@pytest.mark.usefixtures("small")
def test_types_are_those_of_the_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    with jax.enable_x64(True):
        _, *rows = rows_of("types", ByNumPy(), monkeypatch)
    assert [row[0] for row in rows] == [
        *("float32", "float32", "float32", "bfloat16", "bfloat16", "bfloat16"),
        *("int8", "int8", "int8", "uint32", "uint32", "uint32", "complex64", "complex128"),
    ]
    assert {row[-1] for row in rows} == {"0"}


def test_the_masks_are_timed_against_their_floors(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"GRADIENT": 1 << 18, "ROUNDS": 2, "CALLS": 2}.items():
        monkeypatch.setattr(kernels, name, value)
    x = jax.numpy.ones(1 << 16, np.float32)
    rows = list(kernels.masks(np.float32, x, peak=1.0))  # at a byte a second, everything is quick enough
    assert [row[0] for row in rows] == ["means", "mask path: means, choice, drop"]
    assert [row[-1] for row in rows] == ["pass", ""]
    assert kernels._row("sum", np.float32, 1.0, 100, 200.0, 1.1)[-3:] == ["2.00", "1.10", "miss"]


def test_several_devices_are_held_to_the_direct_schedules_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The section itself, on the CPU's devices and core, which have the same bits."""
    values = {"CALLS": 2, "ELEMENTS": 1003, "TIMED_BYTES": (1 << 20,), "fused": SimpleNamespace(check=lambda: None)}
    for name, value in values.items():
        monkeypatch.setattr(devices, name, value)
    rows = list(devices.devices())
    assert rows[1:3] == [["direct", "float32", "2", "0"], ["direct", "bfloat16", "2", "0"]]
    assert rows[4][0] == "1" and all(float(cell) > 0 for cell in rows[4][1:])
    assert any(row[0] == f"3 of {1 << 20} bytes" for row in rows)
