"""The thread that names the rank for which a call of this process waits."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm import environment, ffi

DEADLINE_S = 0.6


@pytest.fixture(autouse=True)
def short_deadline(monkeypatch: pytest.MonkeyPatch, no_plan: None) -> Iterator[None]:
    """XLA runs the collectives, their arrivals are recorded, and the deadline is short."""
    monkeypatch.setenv(environment.EXECUTOR, "xla")
    monkeypatch.setenv(environment.ARRIVALS, "1")
    before_s = ffi.deadline()
    ffi.set_deadline(DEADLINE_S)
    yield
    ffi.set_deadline(before_s)


def test_each_overdue_call_is_logged_once_with_the_late_device(caplog: pytest.LogCaptureFixture) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("data",))

    def body(x: jax.Array, seconds: jax.Array) -> jax.Array:
        return jaxcomm.psum(ffi.delay(x, jnp.where(lax.axis_index("data") == 2, seconds, 0.0)), "data")

    step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(P("data"), P()), out_specs=P(), check_vma=False))
    x = jnp.arange(4.0)
    jax.block_until_ready(step(x, 0.0))
    with caplog.at_level(logging.WARNING, "jaxcomm"):
        jax.block_until_ready(step(x, 0.2))
        assert caplog.messages == []
        for number in (3, 4):
            jax.block_until_ready(step(x, 2.0))
            (message,) = caplog.messages
            caplog.clear()
            assert message.startswith(
                f"DeadlineError: psum #{number} over 'data' (4 B, plan lax): rank 2 of 4 has not "
            )
            assert "; 0,1,3 wait.\n  Rank 2 is process 0 on " in message
    (site,) = [site for site in jaxcomm.stats() if site["failed"]]
    assert (site["calls"], site["failed"], site["late"][2]) == (4, 2, pytest.approx(3, abs=1))
    assert site["wait_s"][0] == pytest.approx(4.2, abs=0.5)
