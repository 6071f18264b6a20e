"""Executables that one process compiles ahead of time and another loads and runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import jaxcomm
from tests.collectives.plans import RING

COMMON = """
import pickle, sys
from pathlib import Path
import tests.conftest, jax, numpy as np
from jax.experimental import serialize_executable
import jaxcomm
folder = Path(sys.argv[1])
"""
COMPILE = """
from tests.collectives.lax_cases import MESH, P, X, sharded

def body(x):
    y = jaxcomm.psum({"x": x, "positive": x > 0}, "d")
    return y, jaxcomm.pmax(x, "d"), jaxcomm.all_gather(x, "d"), jaxcomm.psum_scatter(jax.numpy.tile(x, (8, 1)), "d")

if sys.argv[2] == "planned":
    jaxcomm.use_plan(folder / "plan.json")
step = jax.jit(sharded(body, P("d"), P("d"), False))
compiled = step.lower(jax.ShapeDtypeStruct(X.shape, X.dtype)).compile()
assert "jaxcomm_collective" in compiled.as_text()
result = jax.tree.map(np.asarray, step(X))
(folder / "step").write_bytes(pickle.dumps((serialize_executable.serialize(compiled), X, result)))
"""
RUN = """
{prepare}
serialized, x, expected = pickle.loads((folder / "step").read_bytes())
step = serialize_executable.deserialize_and_load(*serialized)
sharding = jax.NamedSharding(jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,)), jax.P("d"))
jax.tree.map(np.testing.assert_array_equal, step(jax.device_put(x, sharding)), expected)
print(sorted({{site["plan"] for site in jaxcomm.stats()}}))
"""


@pytest.fixture(scope="module", params=["direct", "planned"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The plan under which an executable was compiled, and its path."""
    path = tmp_path_factory.mktemp("executable")
    jaxcomm.plan.save(RING, path / "plan.json")
    process(COMMON + COMPILE, path, request.param).check_returncode()
    return request.param, path


def process(script: str, *args: Path | str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, *map(str, args)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_another_process_runs_it(folder: tuple[str, Path]) -> None:
    """Without a plan the core makes the programs itself. A plan's programs are made when the plan is loaded."""
    plan, path = folder
    prepare = "jaxcomm.init()" if plan == "direct" else 'jaxcomm.use_plan(folder / "plan.json")'
    ran = process(COMMON + RUN.format(prepare=prepare), path)
    assert ran.stdout == ("['direct']\n" if plan == "direct" else f"{sorted([RING.hash[:8], 'direct'])}\n"), ran.stderr


@pytest.mark.parametrize("folder", ["planned"], indirect=True)
def test_without_its_plan_the_error_names_it_and_the_cure(folder: tuple[str, Path]) -> None:
    ran = process(COMMON + RUN.format(prepare="jaxcomm.init()"), folder[1])
    assert ran.returncode != 0
    assert f"psum over 'd': its program belongs to plan {RING.hash[:8]}, which this process has not" in ran.stderr
    assert f"Cure: call jaxcomm.use_plan with the file of plan {RING.hash[:8]}" in ran.stderr
