"""jaxcomm without the packages of its extras: every part that needs none works, and the rest names its extra."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import jaxcomm
from jaxcomm import planner, profile
from jaxcomm.profile import Bucket, Link, Profile, Provenance

# The packages of each extra, and of those that other extras bring.
PACKAGES = {
    "planner": ["ortools", "scipy.special", "pandas", "google.protobuf"],
    "plot": ["matplotlib"],
    "cli": ["rich", "shtab"],
    "train": ["optax"],
    "equinox": ["equinox"],
    "demo": ["flax", "sklearn"],
    "metrics": ["opentelemetry", "prometheus_client", "tensorboardX"],
    "other": ["absl", "tqdm"],
}
EVERY = tuple(PACKAGES)

# Six ranks need a template that only OR-Tools finds, and three buckets that share a delay need it once more.
SIX = Profile(
    ranks=6,
    link=Link(alpha_s=1e-6, beta_s_per_byte=1e-10, source="a test"),
    arrivals=[[0.02 * (rank == 3) for rank in range(6)]] * 4,
    buckets=[Bucket(name=f"b{i}", bytes=2**24 + i * 2**20, ready_s=0.001 * i) for i in range(3)],
    provenance=Provenance(source="a test", tool="pytest"),
)


def without(packages: Sequence[str], script: str, folder: Path) -> str:
    """The output of `script` in a process of its own, in `folder`, where importing `packages` fails."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    hidden = f"import sys\nsys.modules |= dict.fromkeys({[*packages]})\n{script}"
    result = subprocess.run(
        [sys.executable, "-c", hidden], capture_output=True, text=True, timeout=120, env=environment, cwd=folder
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_planning_needs_no_jax(tmp_path: Path) -> None:
    profile.save(SIX, tmp_path / "profile.json")
    script = """
from jaxcomm.cli import main
for words in ("plan profile.json", "verify plan.json", "explain plan.json --svg plan.svg"):
    assert main(words.split()) == 0, words
"""
    assert "Timeline: plan.svg" in without(["jax"], script, tmp_path)


@pytest.mark.slow
def test_running_needs_no_ortools(tmp_path: Path) -> None:
    made = planner.plan(SIX)
    assert made.template is not None and made.schedule_for(2**24).late == 3
    jaxcomm.plan.save(made, tmp_path / "plan.json")
    script = """
import jax, jaxcomm, numpy as np
from jax.sharding import PartitionSpec as P
mesh = jax.sharding.Mesh(jax.devices()[:6], "d")
jaxcomm.init(mesh, plan="plan.json")
step = jax.jit(jax.shard_map(lambda x: jaxcomm.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P()))
x = np.ones((6, 2**22), np.float32)
assert (step(x) == 6).all()
print([site["plan"] for site in jaxcomm.stats()])
"""
    assert without(["ortools"], script, tmp_path).strip() == str([made.hash[:8]])


LOOKS = """
import inspect, pydoc
import jaxcomm
assert "psum" in pydoc.render_doc(jaxcomm) and "straggler" in pydoc.render_doc(jaxcomm.schedules)
found = {}
exec("from jaxcomm import *", found)
assert {*jaxcomm.__all__} <= {*found} and found["psum"] is jaxcomm.psum
assert {name for name, _ in inspect.getmembers(jaxcomm)} >= {*jaxcomm.__all__}
assert all(hasattr(jaxcomm, name) for name in jaxcomm.__all__) and not hasattr(jaxcomm, "psums")
for module in map(jaxcomm.__dict__.get, ("train", "planner", "profile", "report", "schedules", "plan", "lax")):
    assert pydoc.render_doc(module) and all(hasattr(module, name) for name in getattr(module, "__all__", ()))
    exec(f"from {module.__name__} import *", {})
print("all there")
"""


@pytest.mark.slow
@pytest.mark.parametrize("extras", [(), ("planner",), ("plot",), ("train", "demo"), EVERY], ids=" ".join)
def test_jaxcomm_can_be_looked_at_without_extras(extras: tuple[str, ...], tmp_path: Path) -> None:
    hidden = [package for extra in extras for package in PACKAGES[extra]]
    assert without(hidden, LOOKS, tmp_path) == "all there\n"


@pytest.mark.slow
def test_a_bare_installation_trains_under_a_plan(tmp_path: Path) -> None:
    made = planner.plan(SIX)
    jaxcomm.plan.save(made, tmp_path / "plan.json")
    script = """
import jax, jax.numpy as jnp, numpy as np
import jaxcomm
P = jax.P
mesh = jax.sharding.Mesh(jax.devices()[:6], "d")
jaxcomm.init(mesh, plan="plan.json")

def step(w, x):
    grads = jax.grad(lambda w: jnp.mean((x @ w - 1) ** 2))(w)
    return w - 0.1 * jaxcomm.pmean(grads, "d")

step = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(P(), P("d")), out_specs=P(), check_vma=False))
w = jnp.zeros(2**22)
x = np.full((6, 2**22), 2.0**-22, np.float32)
for _ in range(3):
    w = step(w, x)
assert np.isfinite(w).all() and (w > 0).all()
average = jaxcomm.train.local_sgd(1, "d")
print([site["plan"] for site in jaxcomm.stats()])
"""
    packages = [package for extra in EVERY for package in PACKAGES[extra] if not package.startswith("scipy")]
    assert without(packages, script, tmp_path).strip() == str([made.hash[:8]])


MISSING = {
    "plan profile.json": "finding the template of a straggler schedule needs the package ortools.\n"
    "  Cure: pip install 'jaxcomm[planner]'",
    "verify --schedule straggler --ranks 6": "needs the package ortools.\n  Cure: pip install 'jaxcomm[planner]'",
    "simulate --ranks 4 --sizes 1KiB --plot x.png": "--plot needs the package matplotlib.\n"
    "  Cure: pip install 'jaxcomm[plot]'",
    "top --once": "jaxcomm top needs the package rich.\n  Cure: pip install 'jaxcomm[cli]'",
    "--print-completion fish": "jaxcomm --print-completion needs the package shtab.\n"
    "  Cure: pip install 'jaxcomm[cli]'",
    "demo": "jaxcomm demo needs the package flax.\n  Cure: pip install 'jaxcomm[demo]'",
}


@pytest.mark.parametrize("words", MISSING)
def test_a_command_names_the_extra_that_it_lacks(words: str, tmp_path: Path) -> None:
    profile.save(SIX, tmp_path / "profile.json")
    script = f"""
import contextlib, io
from jaxcomm.cli import main
errors = io.StringIO()
with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
    code = main({words.split()})
print(code, errors.getvalue())
"""
    found = without([package for extra in EVERY for package in PACKAGES[extra]], script, tmp_path)
    assert found.startswith("1 error: ") and MISSING[words] in found and "Traceback" not in found


def test_functions_name_the_extra_that_they_lack(tmp_path: Path) -> None:
    script = """
import jaxcomm
metrics = jaxcomm.metrics.register, jaxcomm.metrics.instrument
calls = [lambda: jaxcomm.train.bounded_drop("d"), lambda: jaxcomm.train.outer_steps(2, None, "d")]
calls += [lambda: jaxcomm.nnx.grad(abs, "d"), lambda: jaxcomm.equinox.grad(abs, "d")]
for call in (*calls, *metrics):
    try:
        call()
    except jaxcomm.JaxcommError as error:
        print(error)
"""
    cure = "needs the package optax.\n  Cure: pip install 'jaxcomm[train]'\n"
    expected = f"jaxcomm.train.bounded_drop {cure}jaxcomm.train.outer_steps {cure}"
    expected += "jaxcomm.nnx needs the package flax.\n  Cure: pip install 'jaxcomm[demo]'\n"
    expected += "jaxcomm.equinox needs the package equinox.\n  Cure: pip install 'jaxcomm[equinox]'\n"
    metrics = {"register": "prometheus_client", "instrument": "opentelemetry"}
    for name, package in metrics.items():
        expected += f"jaxcomm.metrics.{name} needs the package {package}.\n  Cure: pip install 'jaxcomm[metrics]'\n"
    assert without(["optax", "flax", "equinox", *metrics.values()], script, tmp_path) == expected
