"""Steps compiled for TPUs without one: sums stay jax.lax's there, and a plan that asks for permutes gets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxcomm
from jaxcomm.ffi import segments
from jaxcomm.plan.timed import single, timed_spec
from jaxcomm.profile.timed_schedules import ScheduleName, TimedKind
from jaxcomm.program.permutes import compile_permutes
from tests.collectives.plans import make
from tests.gpu.compiled_ahead import Compiled, compile_for, needs_libtpu

pytestmark = needs_libtpu

TOPOLOGY = "v5e:2x4"
MIB = 1 << 20
SECONDS = 120.0  # a bound, no timing
WHOLE = ("all-reduce", "reduce-scatter", "all-gather")


def compiled(body: Callable[[Any], Any], nbytes: int = MIB) -> Compiled:
    """Compiles `body` of float32 on eight TPUs."""
    return compile_for(TOPOLOGY, body, jax.ShapeDtypeStruct((8 * nbytes // 4,), jnp.float32))


@pytest.mark.parametrize("is_planned", [False, True])
def test_sums_are_laxs_with_and_without_a_plan(is_planned: bool, no_plan: None) -> None:
    with jaxcomm.use_plan(make((0, None, {"kind": "ring"})) if is_planned else None):
        found = compiled(lambda x: jaxcomm.psum(x, "data"))
    assert (found.count("all-reduce"), found.count("collective-permute")) == (1, 0)
    assert found.seconds < SECONDS


def test_halves_are_laxs(no_plan: None) -> None:
    scattered = compiled(lambda x: jaxcomm.psum_scatter(x, "data", tiled=True))
    gathered = compiled(lambda x: jaxcomm.all_gather(x, "data", tiled=True))
    assert sum(scattered.count(each) for each in WHOLE) == sum(gathered.count(each) for each in WHOLE) == 1
    assert "jaxcomm_collective" not in scattered.text + gathered.text


def test_importance_masks_compile_without_our_core() -> None:
    found = compiled(lambda x: segments.importance(x, 1024))
    assert "jaxcomm_importance" not in found.text
    assert not any(found.count(each) for each in WHOLE)
    assert found.seconds < SECONDS


@pytest.mark.parametrize(
    ("kind", "chunks", "buffers"),
    [("ring", None, 1.1), ("direct", None, 2.0), ("straggler", 7, 2.2), ("late_join", 4, 2.1)],
)
def test_a_plan_that_asks_for_permutes_gets_them(
    kind: TimedKind, chunks: int | None, buffers: float, no_plan: None
) -> None:
    plan = single(timed_spec(ScheduleName(kind=kind, chunks=chunks)), 8, 3, "xla")
    with jaxcomm.use_plan(plan):
        found = compiled(lambda x: jaxcomm.psum(x, "data"))
    assert found.count("collective-permute") == compile_permutes(plan.schedules[0], 1).length
    assert not any(found.count(each) for each in WHOLE)
    assert found.temporary_bytes <= buffers * MIB
    assert found.seconds < SECONDS
