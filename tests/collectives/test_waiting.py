"""No call waits for ever: many calls at once, in loops and branches, and a rank that never arrives."""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxcomm
from tests.collectives.lax_cases import P, sharded

REPETITIONS = int(os.environ.get("JAXCOMM_SOAK", "20"))
CALLS = 64


@pytest.fixture(autouse=True)
def a_hang_shows_where() -> Iterator[None]:
    faulthandler.dump_traceback_later(30 + 3 * REPETITIONS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def independent(x: Any) -> Any:
    """Calls that XLA may start in any order, which may differ between devices."""
    return sum(jaxcomm.psum(x * i, "d") for i in range(CALLS))


def in_scan(x: Any) -> Any:
    step = lambda c, i: (c + jaxcomm.psum(x * i, "d") + jaxcomm.psum(x, "d") * 0, None)  # noqa: E731
    return lax.scan(step, jnp.zeros_like(x[:1]), jnp.arange(CALLS, dtype=x.dtype))[0]


def in_cond(x: Any) -> Any:
    def step(c: Any, i: Any) -> Any:
        odd, even = (lambda: jaxcomm.psum(x * i, "d")), (lambda: jaxcomm.pmax(x, "d") * 0 + jaxcomm.psum(x * i, "d"))
        return c + lax.cond(i % 2 == 1, odd, even), None

    return lax.scan(step, jnp.zeros_like(x[:1]), jnp.arange(CALLS, dtype=x.dtype))[0]


@pytest.mark.parametrize("body", [independent, in_scan, in_cond], ids=lambda body: body.__name__)
def test_many_calls_end(body: Callable[..., Any]) -> None:
    x = np.arange(8.0 * 1000, dtype=np.float32).reshape(8, 1000) % 7
    step = jax.jit(sharded(body, P("d"), P(), False))
    expected = x.sum(0, keepdims=True) * sum(range(CALLS))
    for _ in range(REPETITIONS):
        np.testing.assert_array_equal(step(x), expected)


def test_a_rank_that_never_comes_is_named_and_the_next_call_works() -> None:
    x = np.ones((8, 1 << 10), np.float32)
    lonely = jax.jit(
        sharded(
            lambda x: lax.cond(lax.axis_index("d") == 3, lambda x: x, lambda x: jaxcomm.psum(x, "d"), x),
            P("d"),
            P("d"),
            False,
        )
    )
    everyone = jax.jit(sharded(lambda x: jaxcomm.psum(x, "d"), P("d"), P(), True))
    jaxcomm.init(deadline_s=1)
    try:
        with pytest.raises(
            jax.errors.JaxRuntimeError,
            match=r"DeadlineError: psum #\d+ over 'd' \(4 KiB, plan direct\): rank 3 of 8 has not arrived after "
            r"1\.\d s; 0,1,2,4,5,6,7 wait\.",
        ):
            jax.block_until_ready(lonely(x))
        np.testing.assert_array_equal(everyone(x), 8 * x[:1])
    finally:
        jaxcomm.init(deadline_s=60)


@pytest.mark.parametrize(
    ("value", "output"), [("0.5", "not arrived after 0."), ("-1", "JAXCOMM_DEADLINE_S is '-1'; it must be a positive")]
)
def test_the_environment_sets_the_deadline(value: str, output: str) -> None:
    script = """
import tests.conftest, jax, jax.numpy as jnp
from jax import lax
from tests.collectives.lax_cases import P, sharded
import jaxcomm
step = lambda x: lax.cond(lax.axis_index("d") == 3, lambda x: x, lambda x: jaxcomm.psum(x, "d"), x)
try:
    jax.block_until_ready(jax.jit(sharded(step, P("d"), P("d"), False))(jnp.ones(8)))
except (jax.errors.JaxRuntimeError, jaxcomm.JaxcommError) as error:
    print(error)
"""
    environment = {**os.environ, "JAXCOMM_DEADLINE_S": value, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert output in result.stdout
