"""Denormals are flushed on every thread that goes on with XLA's program, whoever makes the threads of the core."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Second moments of tiny gradients: some of them, and squares on the way to more, are denormal. Sums of so few bits are
# exact in any order.
STEPS = """
import jax, jax.numpy as jnp, numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
import jaxcomm
{door}
mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
gradients = np.ldexp(np.random.default_rng(0).integers(-99, 99, (8, 200_000)).astype(np.float32), -66)

def train(pmean):
    def step(v, x):
        mean = pmean(x, "d")
        return 0.9 * v + 0.1 * mean * mean
    compiled = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
    v = jnp.zeros((8, 200_000), jnp.float32)
    for _ in range(20):
        v = compiled(v, gradients)
    return np.asarray(v)

ours, expected = train(jaxcomm.pmean), train(lax.pmean)
assert 0.1 < (expected == 0).mean() < 0.9  # of both kinds enough
print([int((row.view(np.uint32) != expected[0].view(np.uint32)).sum()) for row in ours])
"""


@pytest.mark.parametrize(
    ("door", "environment"),
    [
        ("", {}),
        ("jaxcomm.init(deadline_s=60)", {}),
        ("", {"JAXCOMM_DEADLINE_S": "60"}),
        ("jaxcomm.stats()", {}),
    ],
    ids=["none", "init", "environment", "stats"],
)
def test_devices_end_with_the_same_bits_as_each_other_and_as_with_lax(door: str, environment: dict[str, str]) -> None:
    run = subprocess.run(
        [sys.executable, "-c", STEPS.format(door=door)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == str([0] * 8)  # elements that differ, by device
