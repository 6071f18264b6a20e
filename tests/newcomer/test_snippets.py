"""The README's snippets of Python, each pasted into a whole program as it is printed."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from newcomer import blocks, shell

from jaxcomm import plan, planner
from jaxcomm.profile import Bucket, Layer, Link, Profile, Provenance, Rack, Tolerance

pytest.importorskip("optax", reason="the snippets train by Optax")

# What stands before every snippet.
HEAD = """
import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["PJRT_NPROC"] = "32"
import jax
import jax.numpy as jnp
import jaxcomm
import numpy as np
import optax
from jax.sharding import PartitionSpec as P
from jaxcomm import train

mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
params = {"front": jnp.ones((64, 64)), "back": jnp.ones((64, 1))}
batch = jnp.arange(16.0 * 64).reshape(16, 64) / 1024


def loss(params, batch):
    return jnp.mean((jnp.tanh(batch @ params["front"]) @ params["back"]) ** 2)


def lax_step(params, batch):
    return jax.lax.pmean(jax.grad(loss)(params, batch), "data")


def on_all(step):
    return jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False))(
        params, batch
    )


exact = on_all(lax_step)


def is_exact(grads):
    pairs = zip(jax.tree.leaves(grads), jax.tree.leaves(exact), strict=True)
    return all(np.allclose(ours, theirs, rtol=1e-5) for ours, theirs in pairs)
"""


def own_step(snippet: str) -> str:
    """The step returns what it averaged in place of its `...`."""
    return f"""
def train(step):
    assert is_exact(on_all(step))


{snippet.replace("...", "return grads")}
assert {{site["plan"] for site in jaxcomm.stats()}} == {{jaxcomm.plan.load("plan.json").hash[:8]}}
"""


def in_the_step(snippet: str) -> str:
    """No gradient of this model has so many segments that one of them may be lost."""
    return f"""
jaxcomm.init(plan="plan.json")


def step(params, batch):
    grads = jax.grad(loss)(params, batch)
{textwrap.indent(snippet, "    ")}
    return grads


assert is_exact(on_all(step))
"""


def shuffled(snippet: str) -> str:
    """Two lines for the host, two for the jitted step, and two for the host again."""
    lines = [line for line in snippet.splitlines() if line]
    first, inside, last = ("\n".join(lines[i : i + 2]) for i in (0, 2, 4))
    return f"""
{first}
updates, swa, groups = jax.tree.map(jnp.ones_like, params), params, None


def local_step(params, updates, swa, step, table):
{textwrap.indent(inside, "    ")}
    return params, swa


specs = {{"in_specs": (P("data"), P("data"), P("data"), P(), P()), "out_specs": P("data")}}
rows = [jax.tree.map(lambda leaf: jnp.tile(leaf[None], (8, *[1] * leaf.ndim)), tree) for tree in (params, updates, swa)]
new, swa = jax.jit(jax.shard_map(local_step, mesh=mesh, **specs))(*rows, jnp.int32(0), table)
assert np.allclose(new["front"], 2) and np.allclose(swa["front"], 1.01)
{last}
assert adjustment.reason
"""


# By a word that only this snippet has.
PROGRAMS: dict[str, Callable[[str], str]] = {
    "jaxcomm.init(plan=": own_step,
    "train.pmean_buckets": in_the_step,
    "train.Loss(0.1)": in_the_step,
    "train.divide_and_shuffle": shuffled,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a plan.json of eight ranks that has decided all of which the snippets speak."""
    here = tmp_path_factory.mktemp("snippets")
    sizes = {"front": 64 * 64 * 4, "back": 64 * 4}
    measured = Profile(
        ranks=8,
        link=Link(alpha_s=1e-6, beta_s_per_byte=1e-9, source="a test"),
        arrivals=[[0.02 * (rank == 3) for rank in range(8)]] * 4,
        buckets=[Bucket(name=name, bytes=size, ready_s=1e-3) for name, size in sizes.items()],
        racks=[Rack(name=str(i), ranks=[*range(4 * i, 4 * i + 4)], uplink=4.0) for i in range(2)],
        tolerance=Tolerance(layers=[Layer(name=name, bytes=size) for name, size in sizes.items()], bound=0.1),
        provenance=Provenance(source="a test", tool="pytest"),
    )
    plan.save(planner.plan(measured, time_limit=0.05), here / "plan.json")
    return here


@pytest.mark.parametrize("word", PROGRAMS)
def test_a_snippet_runs(word: str, folder: Path) -> None:
    [snippet] = [snippet for snippet in blocks("README.md", "python") if word in snippet]
    program = folder / f"{[*PROGRAMS].index(word)}.py"
    program.write_text(HEAD + PROGRAMS[word](snippet))
    shell(f"python {program.name}", folder)


def test_every_snippet_has_a_program() -> None:
    found = blocks("README.md", "python")
    assert [[word for word in PROGRAMS if word in snippet] for snippet in found] == [[word] for word in PROGRAMS]
