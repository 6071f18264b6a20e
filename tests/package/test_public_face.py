"""`import jaxcomm`: what it offers, and what it does not import."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import jaxcomm


def test_every_name_is_there() -> None:
    assert dir(jaxcomm) == sorted(jaxcomm.__all__)
    for name in jaxcomm.__all__:
        assert getattr(jaxcomm, name) is not None
    with pytest.raises(AttributeError, match="module 'jaxcomm' has no attribute 'psums'"):
        jaxcomm.psums  # noqa: B018


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import jaxcomm", ["jax", "numpy", "pydantic", "ortools"]),
        ("import jaxcomm; jaxcomm.backend.use()", ["jax", "jaxlib", "numpy", "pydantic"]),
        ("import jaxcomm; jaxcomm.schedules.ring(4); jaxcomm.plan.load", ["jax", "ortools"]),
        ("import jaxcomm; jaxcomm.planner.plan, jaxcomm.profile.load, jaxcomm.report, jaxcomm.__version__", ["jax"]),
        (
            "import jaxcomm; jaxcomm.psum, jaxcomm.train, jaxcomm.nnx, jaxcomm.equinox",
            ["ortools", "flax", "equinox", "matplotlib", "jaxcomm.planner"],
        ),
        ("import jaxcomm; jaxcomm.psum", ["pydantic", "jaxcomm.gpu", "jaxcomm.profile", "jaxcomm.measure"]),
    ],
)
def test_imports_are_lazy(statement: str, absent: list[str]) -> None:
    script = f"{statement}\nimport sys\nprint([name for name in {absent} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        'jaxcomm.pmean(x, "d")',
        'jaxcomm.lax.psum(x, "d")',
        'jaxcomm.all_gather(x, "d", tiled=True)[:1]',
        'jaxcomm.train.local_sgd(1, "d")(x, 0)',
        'jaxcomm.psum(x, "d", drop=jaxcomm.train.Drop(0.5, segment_bytes=64))',
    ],
)
def test_a_step_that_is_the_first_to_name_a_collective_is_traced_once(call: str) -> None:
    script = """
import tests.conftest, jax, numpy as np
import jaxcomm
traced = []

def body(x):
    traced.append(x)
    return CALL

mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d"), check_vma=False))
for _ in range(2):
    jax.block_until_ready(step(np.ones(2, np.float32)))
print(len(traced))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run(
        [sys.executable, "-c", script.replace("CALL", call)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=environment,
    )
    assert result.stdout.strip() == "1"


def test_import_star_of_lax_brings_all_names() -> None:
    import jax.lax

    from jaxcomm import lax

    theirs: dict[str, object] = {}
    ours: dict[str, object] = {}
    exec("from jax.lax import *", theirs)
    exec("from jaxcomm.lax import *", ours)
    assert theirs.keys() == ours.keys() and {"psum", "scan", "pcast"} <= ours.keys()
    assert all(ours[name] is getattr(lax, name) for name in lax.__all__)
    assert all(getattr(jax.lax, name) is ours[name] for name in lax.__all__ if name not in jaxcomm.__all__)


def test_lax_is_jaxcomms_and_else_jaxs() -> None:
    import jax.lax

    from jaxcomm import lax

    both = [name for name in jaxcomm.__all__ if hasattr(jax.lax, name)]
    assert {"psum", "pmean", "pmax", "pmin", "psum_scatter", "all_gather"} <= set(both)
    assert all(getattr(lax, name) is getattr(jaxcomm, name) for name in both)
    theirs = [name for name in dir(jax.lax) if not name.startswith("_") and name not in both]
    assert all(getattr(lax, name) is getattr(jax.lax, name) for name in theirs)
    assert set(theirs) <= set(dir(lax))
    with pytest.raises(AttributeError, match=r"module 'jaxcomm\.lax' has no attribute 'psums'"):
        lax.psums  # noqa: B018


def test_a_program_of_pmap_changes_one_line() -> None:
    import jax
    import numpy as np

    from jaxcomm import lax

    def step(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return lax.pmean(lax.psum(x, "i"), "i"), lax.axis_index("i")

    jaxcomm.reset_stats()
    sums, indices = jax.pmap(step, axis_name="i")(np.arange(8.0, dtype=np.float32))
    assert (np.asarray(sums) == 28).all() and np.asarray(indices).tolist() == [*range(8)]
    assert sum(site["calls"] for site in jaxcomm.stats()) == 2
