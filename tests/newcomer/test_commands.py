"""The README's quick start and the examples of every command, as a newcomer types them."""

from __future__ import annotations

import contextlib
import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from jaxcomm import testbed
from jaxcomm.cli.dispatch import COMMANDS
from tests.newcomer.newcomer import ROOT, blocks, commands, shell
from tests.report.dumped import WAITING

pytestmark = pytest.mark.slow

FIXTURES = ROOT / "tests" / "fixtures"

# The user's own files of which the examples speak.
MODEL = """
import jax
import jax.numpy as jnp

import jaxcomm


def forward(params, x):
    return jnp.tanh(x @ params["front"]) @ params["back"]


def loss(params, x):
    return jnp.mean(forward(params, x) ** 2)


params = {"front": jnp.ones((64, 64)), "back": jnp.ones((64, 1))}
batch = jnp.ones((16, 64))


def example():
    return loss, params, batch


def layers():
    return jaxcomm.train.layers(forward, params, batch)


def train(drop, seed):
    mesh = jax.sharding.Mesh(jax.devices(), ("data",))
    spec = jax.sharding.PartitionSpec
    mean = jax.shard_map(
        lambda x: jaxcomm.pmean(x, "data", drop=drop), mesh=mesh, in_specs=spec("data"), out_specs=spec()
    )
    jax.jit(mean)(jnp.ones((8, 64)))
    yield from (4.0, 3.0, 2.0)
"""

# A run of theirs, of which the statistics are kept.
RUN = """
import jax
import jax.numpy as jnp

import jaxcomm

spec = jax.sharding.PartitionSpec("data")
mesh = jax.sharding.Mesh(jax.devices(), ("data",))
options = {"mesh": mesh, "in_specs": spec, "out_specs": spec, "check_vma": False}
step = jax.jit(jax.shard_map(lambda x: jaxcomm.psum(x, "data"), **options))
for size in (64, 4096, 65536):
    for _ in range(8):
        step(jnp.ones((8, size))).block_until_ready()
jaxcomm.stats().save("run.json")
"""

# A run with plan="auto" that saves its statistics.
AUTO_RUN = """
import jaxcomm
from jaxcomm.plan import in_force
from jaxcomm.statistics import Stats

made = jaxcomm.plan.load("plan.json")
plans = [{"axes": [], "since_s": 1.0, **in_force.in_force(made), "file": made.model_dump(mode="json")}]
Stats(plans=plans, at_s=2.0).save("auto_run.json")

# One of whose call sites has tried the plan.
trial = {"outcome": "dropped", "decided_here": True, "trials": 1, "calls": [32, 32], "plan_s": 2e-3, "default_s": 1e-3}
site = {"name": "psum", "axes": "data", "plan": made.hash[:8], "ranks": made.ranks, "bytes": 4096, "calls": 80}
site |= {"trial": trial | {"error_s": 1e-5}, "failed": 0, "transfer_s": 0.1, "early_bytes_share": 0.0}
site |= {"wait_s": [0.0] * made.ranks, "late": [0] * made.ranks, "arrivals": [], "work_s": [], "after_arrival_s": []}
Stats([site], plans=plans, at_s=2.0).save("tried_run.json")
"""

# A job that runs until its standard input is closed.
JOB = """
import sys

import jax
import jax.numpy as jnp

import jaxcomm

spec = jax.sharding.PartitionSpec("data")
mesh = jax.sharding.Mesh(jax.devices()[:1], ("data",))
step = jax.jit(jax.shard_map(lambda x: jaxcomm.psum(x, "data"), mesh=mesh, in_specs=spec, out_specs=spec))
step(jnp.ones((1, 64))).block_until_ready()
print("a step has run", flush=True)
sys.stdin.read()
"""

# In place of ssh: runs the command here, whichever host it names.
SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
exec sh -c "$3"
"""

# Options that make an example short, after its own. The rest of an example is run as it is printed.
SHORTER = {
    "demo": "--steps 6 --hidden 8 --batch 1",
    "profile": "--sizes 4KiB,64KiB --steps 5 --seconds 5",
    "profile step": "--steps 2",
    "profile drop-bound": "--repeats 2 --devices 8",
    "plan": "--time-limit 0.05 --try-limit 5",
    "verify": "--ranks 2..8",
    "simulate": "--sizes 1MiB",
    "simulate events": "--sizes 1MiB --repeats 2",
    "what-if": "--sizes 1MiB",
    "bench": "--sizes 1KiB --rounds 1",
}
# Packages that most commands import longer than they use; without JAX, which they prepare before its import.
IMPORTED = ("sklearn.datasets", "matplotlib.figure", "ortools.sat.python.cp_model", "jaxcomm.planner")
# On a machine without what they need, these say what they would do.
DRY = ("--on cuda", "recipes/images.py", "jaxcomm check ", "testbed run")


def examples(command: str) -> list[str]:
    module = importlib.import_module("jaxcomm.cli." + command.replace(" ", "_").replace("-", "_"))
    return commands(module.EXAMPLE)


def short(line: str) -> str:
    """The line, without its comment, with the options that make each of its commands short."""
    return " -- ".join(shortened(part.strip()) for part in line.partition("#")[0].split(" -- "))


def shortened(words: str) -> str:
    if not words.startswith("jaxcomm "):
        return words
    command = max((name for name in COMMANDS if words.startswith(f"jaxcomm {name}")), key=len)
    dry = "--dry-run" if any(word in f"{words} " for word in DRY) else ""
    shorter = "" if "run.json" in words else SHORTER.get(command, "")  # which was measured already
    return f"{words} {shorter} {dry}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the quick start was typed, and what else the examples take was made."""
    here = tmp_path_factory.mktemp("newcomer")
    [start] = [block for block in blocks("README.md") if "jaxcomm profile --late" in block]
    for line in commands(start):
        shell(short(line), here)
    assert {path.suffix for path in here.iterdir() if path.is_file()} == {".json", ".svg"}
    (here / "train.py").write_text(MODEL)
    (here / "run.py").write_text(RUN)
    shell('XLA_FLAGS="$XLA_FLAGS --xla_force_host_platform_device_count=8" PJRT_NPROC=32 python run.py', here, IMPORTED)
    shell(
        "jaxcomm profile --late rank=3,ms=30 --sizes 4KiB,64KiB --steps 10 --seconds 5 --out late.json", here, IMPORTED
    )
    (here / "mine").mkdir()
    (here / "mine" / "text.py").write_text(MODEL)
    (here / "dumps").mkdir()
    for each in WAITING:
        (here / "dumps" / f"process-{each['process']}-0.json").write_text(json.dumps(each))
    (here / "recipes").symlink_to(ROOT / "recipes")
    ssh = here / ".programs" / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    for name in ("racks.toml", "switch.toml"):
        shutil.copy(Path(testbed.__file__).parent / "examples" / name, here)
    shutil.copy(FIXTURES / "training_log.txt", here / "training.log")
    shutil.copy(FIXTURES / "cpu.xplane.pb", here / "trace.xplane.pb")
    shutil.copy(FIXTURES / "nccl_topology.xml", here)
    shutil.copy(FIXTURES / "pair_rates_of_gpus.txt", here / "pair_rates.txt")  # of four, as hosts are in the example
    for name in ("all_reduce_perf.txt", "eth0.txt", "eth1.txt"):
        shutil.copy(FIXTURES / "nccl_tests.txt", here / name)
    shell("jaxcomm profile step train.py:example --steps 2", here, IMPORTED)
    shell("jaxcomm plan profile.json --out plan.json", here, IMPORTED)
    (here / "auto_run.py").write_text(AUTO_RUN)
    shell("python auto_run.py", here, IMPORTED)
    shell("jaxcomm profile import all_reduce_perf.txt --out rails.json", here, IMPORTED)
    for rail in ("eth0", "eth1"):
        shell(f"jaxcomm profile import {rail}.txt --rail {rail}=tcp --into rails.json", here, IMPORTED)
    return here


@contextlib.contextmanager
def running_job() -> Iterator[None]:
    """A job that `jaxcomm top` shows."""
    words = [sys.executable, "-c", JOB]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdin is not None and job.stdout is not None
        assert job.stdout.readline() == "a step has run\n"
        yield
        job.stdin.close()


@pytest.fixture(scope="module")
def typed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[str]]]:
    """The output of every example: those of a command one after the other in a folder, two commands at a time."""

    def run(command: str) -> str:
        here = tmp_path_factory.mktemp("example") / "here"
        shutil.copytree(folder, here, symlinks=True)
        with running_job() if command == "top" else contextlib.nullcontext():
            return "".join(shell(short(line), here, IMPORTED) for line in examples(command))

    with ThreadPoolExecutor(2) as pool:
        yield {command: pool.submit(run, command) for command in COMMANDS}


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_run(command: str, typed: dict[str, Future[str]]) -> None:
    if command == "demo":
        pytest.importorskip("flax", reason="the demo trains a Flax model")
        pytest.importorskip("sklearn", reason="the demo trains on scikit-learn's digits")
    if command == "testbed check" and any(each.cure for each in testbed.requirements()):
        pytest.skip("this machine cannot carry a testbed, as the command says")
    assert examples(command) and typed[command].result()
