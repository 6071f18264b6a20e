"""The snippets of Python in the README and the guides: those of a page are one program, each as it is printed."""

from __future__ import annotations

import ast
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.newcomer import snippets_in_jobs as jobs
from tests.newcomer.newcomer import ROOT, blocks, shell
from tests.newcomer.planned import write_plan

pytest.importorskip("optax", reason="the snippets train by Optax")
pytest.importorskip("flax", reason="a snippet uses Flax's BatchNorm")

pytestmark = pytest.mark.slow

# The beginning of every page's program.
HEAD = """
import os

os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=8"
os.environ["PJRT_NPROC"] = "32"
import jax
import jax.numpy as jnp
import jaxcomm
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec as P
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


def train_with(step):
    assert is_exact(on_all(step))


def plans_seen():
    return {site["plan"] for site in jaxcomm.stats() if site["calls"]}


planned = jaxcomm.plan.load("plan.json")
exact = on_all(lax_step)


def is_exact(grads):
    pairs = zip(jax.tree.leaves(grads), jax.tree.leaves(exact), strict=True)
    return all(np.allclose(ours, theirs, rtol=1e-5) for ours, theirs in pairs)
"""


# The programs around snippets. At `...` a step returns its averages.


def as_it_is(snippet: str) -> str:
    return snippet


def own_step(snippet: str) -> str:
    return f"""
jaxcomm.reset_stats()
train = train_with
{snippet.replace("...", "return grads")}
train(step)
assert plans_seen() == {{planned.hash[:8]}}
"""


def under_pmap(snippet: str) -> str:
    return f"""
jaxcomm.reset_stats()
{snippet.replace("...", "return grads")}
in_parts = batch.reshape(8, 2, 64)
assert is_exact(jax.pmap(step, axis_name="data", in_axes=(None, 0), out_axes=None)(params, in_parts))
assert plans_seen() == {{planned.hash[:8]}}
"""


def whole_program(snippet: str) -> str:
    return f"""
jaxcomm.init(plan="plan.json")
{snippet}
assert loss == 1 and np.allclose(params, 0.2)
assert plans_seen() == {{planned.hash[:8]}}
"""


def in_the_loss(snippet: str) -> str:
    """A line for dropout, one for masks, and one for a Flax layer."""
    dropout, masks, layer = (line for line in snippet.splitlines() if not line.startswith("#"))
    return f"""
from flax import linen as nn


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        {layer}
        return x


def on_rank(x, weights):
    key = jax.random.key(0)
    {dropout}
    normal, _ = Model().apply(Model().init(key, x), x, mutable=["batch_stats"])
    losses = normal[:, 0] ** 2
    {masks}
    return jax.random.normal(key), jax.lax.psum(loss, "data"), losses


x, weights = jnp.arange(16.0)[:, None], jnp.arange(16.0)
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
mapped = jax.shard_map(
    lambda *args: jax.tree.map(jnp.atleast_1d, on_rank(*args)), mesh=mesh, in_specs=P("data"), out_specs=P("data"),
    check_vma=False,
)
drawn, total, losses = jax.jit(mapped)(x, weights)
assert len({{*drawn.tolist()}}) == 8
assert np.allclose(losses, (x[:, 0] - 7.5) ** 2 / x.var(), atol=1e-3)
assert np.allclose(total, 8 * (weights * losses).sum() / weights.sum())
"""


def by_axis(snippet: str) -> str:
    return f"""
jaxcomm.reset_stats()
{snippet}
train_with(lambda params, batch: jaxcomm.pmean(jax.grad(loss)(params, batch), "data"))
assert plans_seen() == {{planned.hash[:8]}}
"""


def with_replaced(snippet: str) -> str:
    return f"""
jaxcomm.reset_stats()
train, step = train_with, lax_step
{snippet}
assert plans_seen() == {{planned.hash[:8]}}
"""


def in_the_step(snippet: str) -> str:
    """Its imports stand before. No gradient of this model has enough segments to lose one."""
    lines = snippet.splitlines()
    imports = "\n".join(line for line in lines if line.startswith(("import ", "from ")))
    snippet = "\n".join(line for line in lines if line not in imports.splitlines())
    return f"""
{imports}
jaxcomm.init(plan="plan.json")


def step(params, batch):
    grads = jax.grad(loss)(params, batch)
{textwrap.indent(snippet, "    ")}
    return grads


train_with(step)
"""


def shuffled(snippet: str) -> str:
    """An import, two lines for the host, two for the jitted step, and two for the host again."""
    _, *lines = [line for line in snippet.splitlines() if line and not line.startswith("#")]
    first, inside, last = ("\n".join(lines[i : i + 2]) for i in (0, 2, 4))
    return f"""
{first}
updates, swa, adjustment = jax.tree.map(jnp.ones_like, params), params, None


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


def by_rack(snippet: str) -> str:
    """Lines before the optimizer, which subtracts here, and one after it; the racks' gradients are 0 and 1."""
    *before, after = snippet.splitlines()
    return f"""
def local_step(params, gradients, step):
{textwrap.indent(chr(10).join(before), "    ")}
    updates = jax.tree.map(jnp.negative, gradients)
    {after}
    return params


specs = {{"in_specs": (P("data"), P("data"), P()), "out_specs": P("data")}}
mapped = jax.shard_map(local_step, mesh=mesh, check_vma=False, **specs)
ones, uneven = jnp.ones(8), jnp.array([0.0, 0, 0, 0, 4, 0, 0, 0])
assert np.allclose(jax.jit(mapped)(ones, uneven, jnp.int32(6)), [1, 1, 1, 1, 0, 0, 0, 0])
assert np.allclose(jax.jit(mapped)(ones, uneven, jnp.int32(7)), 0.5)
"""


def with_another_role(snippet: str) -> str:
    """For a plan of no network: a schedule that was solved for one is for its late rank."""
    return f"""
measured = jaxcomm.profile.load("profile.json").model_copy(update={{"racks": ()}})
jaxcomm.plan.save(jaxcomm.planner.plan(measured, time_limit=0.05), "plan.json")
{snippet}
assert jaxcomm.plan.load("plan.json", {{"straggler": 5}}).roles == {{"straggler": 5}} != planned.roles
"""


def late_gradients(snippet: str) -> str:
    return (
        f"{snippet}\ntrain_with(lambda params, batch: jaxcomm.pmean(delayed(jax.grad(loss)(params, batch)), 'data'))\n"
    )


def missing_rank(snippet: str) -> str:
    return f"""
import logging

jaxcomm.init(deadline_s=0.5)
log, text = logging.getLogger("mine"), []
log.addFilter(lambda record: text.append(record.getMessage()))


def sum_unless_3(x):
    return jax.lax.cond(jax.lax.axis_index("data") == 3, lambda x: x, lambda x: jaxcomm.psum(x, "data"), x)


def step(params, batch):
    return jax.jit(
        jax.shard_map(sum_unless_3, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False)
    )(batch)


{snippet}
assert text == ["ranks (3,) are missing, (0, 1, 2, 4, 5, 6, 7) wait"]
"""


def after_some_steps(snippet: str) -> str:
    return f"""
for _ in range(3):
    train_with(lambda params, batch: jaxcomm.pmean(jax.grad(loss)(params, batch), "data"))
{snippet}
assert plans_seen() == {{"direct"}}
"""


def while_it_trains(snippet: str) -> str:
    return f"""
{snippet}
saved = training()
assert next(saved) == 0 and next(saved) == 1
assert jaxcomm.profile.from_stats("run.json").ranks == 8
"""


def for_other_tools(snippet: str) -> str:
    return f"""{snippet}
assert jaxcomm.profile.from_stats("run.json").ranks == jaxcomm.profile.from_stats().ranks == 8
"""


def on_any_port(snippet: str) -> str:
    return snippet.replace("9400 + jax.process_index()", "0, addr='127.0.0.1'")


def with_a_writer(snippet: str) -> str:
    return f"""
{after_some_steps("")}
{snippet}
log(SummaryWriter("logs"), 3)
assert {{"calls", "wait_s", "transfer_s"}} <= {{name.rpartition("/")[2] for name in jaxcomm.metrics.scalars()}}
"""


def two_batches(snippet: str) -> str:
    return f"""
batches, state = [batch, batch], 0
step = lambda state, batch: state + 1
os.environ["JAXCOMM_TESTBED_DELAY_S"] = "0.01"
began = __import__("time").monotonic()
{snippet}
assert state == 2 and time.monotonic() - began >= 0.02
"""


def marked(snippet: str) -> str:
    return f"{snippet}\nassert packets.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 0xe2"


def in_one_process(snippet: str) -> str:
    return f"""
{snippet}
assert not jaxcomm.stats().plans  # one process has nothing to follow
"""


GUIDES = "docs/guides/"
LIBRARIES = {"jax", "jaxcomm", "jnp", "np", "optax"}  # that HEAD imports too, so that running a page misses none
# Keys: the page, and a word that only this snippet of the page has.
PROGRAMS: dict[str, dict[str, Callable[[str], str]]] = {
    "README.md": {"jaxcomm.init(plan=": own_step},
    f"{GUIDES}late_ranks.md": {
        "jaxcomm.use_plan": with_another_role,
        'plan="auto"': in_one_process,
        "ffi.delay": late_gradients,
    },
    f"{GUIDES}training.md": {
        "jaxcomm.init(plan=": own_step,
        "from jaxcomm import lax": under_pmap,
        "jaxcomm.use_plan": by_axis,
        "jaxcomm.replace_lax": with_replaced,
        "train.pmean_buckets": in_the_step,
    },
    f"{GUIDES}jit.md": {"def loss_of": whole_program, "nn.BatchNorm": in_the_loss},
    f"{GUIDES}less_exact.md": {
        "train.Drop(0.1)": in_the_step,
        "train.divide_and_shuffle": shuffled,
        "train.local_sgd": by_rack,
    },
    f"{GUIDES}errors.md": {"errors.translated": missing_rank},
    f"{GUIDES}processes.md": {"rng = ": jobs.in_two_processes},
    f"{GUIDES}elastic.md": {"live_devices": jobs.in_a_job},
    f"{GUIDES}statistics.md": {
        "print(jaxcomm.stats())": after_some_steps,
        "def training": while_it_trains,
        "stats.save": for_other_tools,
        "for site in": as_it_is,
    },
    f"{GUIDES}monitoring.md": {
        "metrics.register": on_any_port,
        "metrics.instrument": as_it_is,
        "metrics.scalars": with_a_writer,
    },
    f"{GUIDES}unchanged_programs.md": {
        "def step": jobs.carried,
        "backend.use": jobs.carried_by_choice,
        "errors.translated": jobs.missing_process,
    },
    f"{GUIDES}testbed.md": {"JAXCOMM_TESTBED_DELAY_S": two_batches, "IP_TOS": marked},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plan.json of eight ranks that has decided all of which the snippets speak, and its profile."""
    folder = tmp_path_factory.mktemp("made")
    write_plan(folder)
    return folder


@pytest.mark.parametrize("page", PROGRAMS)
def test_the_snippets_of_a_page_run(page: str, made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    parts = zip(PROGRAMS[page].values(), blocks(page, "python"), strict=True)
    program = tmp_path / f"the_snippets_of_{Path(page).stem}.py"
    program.write_text("\n".join([HEAD, *(put_into(snippet) for put_into, snippet in parts)]))
    # The library that jaxlib loads is chosen before jaxlib is imported.
    imported = [] if "unchanged" in page else ["flax.linen", "optax"]
    shell(f"python {program.name}", tmp_path, imported)


@pytest.mark.parametrize("page", PROGRAMS)
def test_a_page_imports_the_libraries_that_it_uses(page: str) -> None:
    nodes = [node for snippet in blocks(page, "python") for node in ast.walk(ast.parse(snippet))]
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {(each.asname or each.name).partition(".")[0] for node in imports for each in node.names}
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    assert used & LIBRARIES <= imported


def test_every_snippet_has_a_program() -> None:
    pages = ["README.md", *(str(path.relative_to(ROOT)) for path in (ROOT / GUIDES).glob("*.md"))]
    pages.remove(f"{GUIDES}frameworks.md")  # test_frameworks.py runs its programs
    found = {page: blocks(page, "python") for page in pages}
    assert {page for page in pages if found[page]} == {*PROGRAMS}
    for page, words in PROGRAMS.items():
        assert [[word for word in words if word in snippet] for snippet in found[page]] == [[word] for word in words]
