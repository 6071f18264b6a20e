"""Runs recipes and the study that is built on them as a user does, with compiled programs kept between runs."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.processes import fork_server
from tests.quick_compilation import xla_flag

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "recipes"
DEADLINE_S = 300
# Packages that take most scripts longer to import than the scripts run.
IMPORTED = (
    "jax.experimental.multihost_utils",
    "flax.nnx",
    "optax",
    "orbax.checkpoint",
    "sklearn.datasets",
    "tensorboardX",
    "matplotlib.figure",
)


def start(script: Path, words: Sequence[str], cache: Path, launch: Sequence[str] = ()) -> subprocess.Popen[str]:
    """A script in a process of its own, or, given the options of `jaxcomm launch`, in several."""
    launcher = ["-m", "jaxcomm.cli", "launch", *launch] if launch else []
    # To compile; they run briefly.
    quick = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0 {xla_flag()}"
    kept = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return subprocess.Popen(
        [fork_server.python(*IMPORTED, servers=2), *launcher, str(script), *words],
        env={**os.environ, **kept, "PYTHONPATH": path, "XLA_FLAGS": quick},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(script: Path, words: Sequence[str], cache: Path, code: int = 0, launch: Sequence[str] = ()) -> str:
    """A script's output, once it has ended with that exit code."""
    process = start(script, words, cache, launch)
    printed, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == code, printed
    return printed


def kill_after(process: subprocess.Popen[str], path: Path, lines: int) -> None:
    """Kills a process as soon as a file that it writes has this number of lines."""
    deadline = time.monotonic() + DEADLINE_S
    while not path.exists() or len(path.read_text().splitlines()) < lines:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert process.returncode < 0, "it ended before it could be interrupted"
