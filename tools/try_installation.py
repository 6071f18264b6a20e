"""Tries an installed jaxcomm as its user would: looks at it, trains under a plan, and calls commands.

    .venv-all/bin/python -I tools/try_installation.py all FOLDER     makes FOLDER/plan.json
    .venv-bare/bin/python -I tools/try_installation.py bare FOLDER   trains under that plan, without extras

Prints a line about what passed, or fails with the first error.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import os
import platform
import pydoc
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm import ffi

RANKS = 6  # a schedule for six ranks needs a template, which OR-Tools finds
OF_EXTRAS = ("absl", "flax", "google", "matplotlib", "optax", "ortools", "pandas", "sklearn")


def look() -> None:
    """Checks that `help`, `import *`, `inspect` and `hasattr` find everything."""
    assert "psum" in pydoc.render_doc(jaxcomm) and pydoc.render_doc(jaxcomm.train)
    found: dict[str, object] = {}
    exec("from jaxcomm import *", found)
    exec("from jaxcomm.lax import *", found)
    assert {*jaxcomm.__all__, "scan"} <= {*found}
    assert {*jaxcomm.__all__} <= {name for name, _ in inspect.getmembers(jaxcomm)}
    assert all(hasattr(jaxcomm, name) for name in jaxcomm.__all__)
    done = subprocess.run([sys.executable, "-m", "pydoc", "jaxcomm"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "psum" in done.stdout, done.stdout + done.stderr


def look_at_the_core() -> None:
    """Checks that the core finds the processor's vector instructions: some compilers' libraries say there are none."""
    has_vectors = platform.machine() == "aarch64" or " avx2 " in Path("/proc/cpuinfo").read_text()
    assert (ffi.kernel_isa() != "plain") == has_vectors, ffi.kernel_isa()


def plan(folder: Path) -> None:
    """Writes profile.json and plan.json."""
    from jaxcomm.profile import Link, Profile, Provenance, save

    measured = Profile(
        ranks=RANKS,
        link=Link(alpha_s=1e-6, beta_s_per_byte=1e-10, source="an example"),
        arrivals=[[0.02 * (rank == 3) for rank in range(RANKS)]] * 4,
        provenance=Provenance(source="an example", tool="tools/try_installation.py"),
    )
    save(measured, folder / "profile.json")
    command("plan", "profile.json", folder=folder)


def train(folder: Path) -> None:
    """Checks that a step follows the plan and that its result is lax's."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), "data")
    jaxcomm.init(mesh, plan=folder / "plan.json")

    def step_with(pmean: Any) -> Any:
        def step(w: jax.Array, x: jax.Array) -> jax.Array:
            return w - 0.1 * pmean(jax.grad(lambda w: jnp.mean((x @ w - 1) ** 2))(w), "data")

        mapped = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False)
        return jax.jit(mapped)

    w, x = jnp.zeros(1 << 20), np.random.default_rng(0).normal(size=(RANKS, 1 << 20)).astype(np.float32) / 1024
    ours, theirs = step_with(jaxcomm.pmean), step_with(jax.lax.pmean)
    expected = w
    for _ in range(3):
        w, expected = ours(w, x), theirs(expected, x)
    np.testing.assert_allclose(w, expected, rtol=1e-5, atol=1e-8)
    plans = {site["plan"] for site in jaxcomm.stats() if site["calls"]}
    assert plans == {jaxcomm.plan.load(folder / "plan.json").hash[:8]}, plans


def command(*words: str, folder: Path, lacks: str = "") -> None:
    """Checks that a command succeeds or, if it lacks an extra, fails with one error that names the extra."""
    program = Path(sys.executable).with_name("jaxcomm")
    done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, timeout=300)
    if lacks:
        assert done.returncode == 1 and done.stderr.startswith("error: "), done
        assert done.stderr.endswith(f"\n  Cure: pip install 'jaxcomm[{lacks}]'\n"), done.stderr
    else:
        assert done.returncode == 0, done.stdout + done.stderr


def main(kind: str, folder: Path) -> None:
    """Tries an installation; `kind` is "bare" or "all"."""
    os.environ["PJRT_NPROC"] = "32"
    jax.config.update("jax_num_cpu_devices", RANKS)
    bare = kind == "bare"
    assert Path(jaxcomm.__file__).is_relative_to(sys.prefix), f"{jaxcomm.__file__} is not what was installed"
    found = [name for name in OF_EXTRAS if importlib.util.find_spec(name)]
    assert found == ([] if bare else [*OF_EXTRAS]), found
    look()
    look_at_the_core()
    if not bare:
        plan(folder)
    train(folder)
    command("verify", "plan.json", folder=folder)
    command("explain", "plan.json", "--svg", "plan.svg", folder=folder)
    command("launch", "--help", folder=folder)
    command("plan", "profile.json", "--dry-run", folder=folder, lacks="planner" if bare else "")
    plot = ("simulate", "--ranks", "4", "--sizes", "1KiB", "--plot", "times.png")
    command(*plot, folder=folder, lacks="plot" if bare else "")
    demo = ("demo", "--steps", "8", "--hidden", "16")
    command(*demo, folder=folder, lacks="demo" if bare else "")
    if bare:
        for call in (lambda: jaxcomm.train.bounded_drop("data"), lambda: jaxcomm.train.outer_steps(2, None, "data")):
            try:
                call()
            except jaxcomm.JaxcommError as error:
                assert str(error).endswith("Cure: pip install 'jaxcomm[train]'"), error
            else:
                raise AssertionError("no error without Optax")
    packages = sum(1 for _ in importlib.metadata.distributions())
    size = sum(path.lstat().st_size for path in Path(sys.prefix).rglob("*") if path.is_file())
    print(f"{kind}: passed; {packages} packages, {size / 1e6:.0f} MB, JAX {jax.__version__}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
