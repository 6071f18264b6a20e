"""A program for processes of a rank each: a plan's trial, in calls of three kinds, with a late rank."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm import ffi, jax_compat
from jaxcomm.distributed import store
from jaxcomm.report.job import numbers
from jaxcomm.watch.reader import Reader
from tests.collectives.plans import SPECS, make, with_halves
from tests.processes.jobs import report

STEPS = 90
LATE_S = 0.002


def main() -> None:
    jax.distributed.initialize()
    ranks = jax.device_count()
    plan = make((0, None, SPECS["straggler"]), ranks=ranks)
    plan = with_halves(plan, (0, None, SPECS["ring"]), hosts=list(range(ranks)))
    jaxcomm.init(plan=plan, trial=True)
    mesh = jax.make_mesh((ranks,), ("data",))

    @jax.shard_map(mesh=mesh, in_specs=P("data"), out_specs=(P("data"), P("data"), P()))
    def summed(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        x = ffi.delay(x, jnp.where(lax.axis_index("data") == ranks - 1, LATE_S, 0.0))
        part = jaxcomm.psum_scatter(x[0], "data", tiled=True)
        return jaxcomm.psum(x, "data"), part, jaxcomm.pmax(x[0, :9], "data")

    def step_of(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return summed(x)

    step_of.__name__ = f"step_of_{jax.process_index()}"  # all but the calls may differ
    step = jax.jit(step_of)
    values = np.random.default_rng(0).integers(0, 100, (ranks, 12_000)).astype(np.float32)  # exact in any order
    x = jax.make_array_from_callback(values.shape, NamedSharding(mesh, P("data")), lambda index: values[index])
    total, wrong = values.sum(0), 0
    for _ in range(STEPS):
        sums, part, most = (each.addressable_data(0) for each in step(x))
        wrong += not np.array_equal(np.asarray(sums)[0], total)
        wrong += not np.array_equal(np.asarray(part), total.reshape(ranks, -1)[jax.process_index()])
        wrong += not np.array_equal(np.asarray(most), values[:, :9].max(0))
    while len(sites := [site for site in jaxcomm.stats() if site["calls"] == STEPS]) < 3:
        time.sleep(0.01)  # until this process has received all arrivals
    rows = {
        f"{site['name']} {site['bytes']}": {
            "plan": site["plan"],
            "early": site["early_calls"],
            "trial": site.get("trial"),
        }
        for site in sites
    }
    if jax.process_index() == 0:
        report_watched()
        store.publish("watched", "")
    store.lookup("watched", "process 0 has not watched the job")
    report("trials", wrong=wrong, rows=rows, plan=plan.hash[:8])


def report_watched() -> None:
    """Reports the job as `jaxcomm top` shows it."""
    reader, name = Reader(), jax_compat.coordinator_address()
    processes: list[numbers.JobProcess] = []
    while len(processes) < jax.process_count():  # on a busy machine some answer late
        [job] = [each for each in numbers.jobs(reader.read(), []) if each.name == name]
        processes = job.processes
    report(
        "watched",
        size=job.size,
        processes=[each.process for each in processes],
        plans=[each.plan for each in job.plans],
        last_in={rank.rank: rank.last for rank in job.ranks},
        trials={f"{site.name} {site.bytes}": site.trial for site in job.sites if site.calls == STEPS},
    )


if __name__ == "__main__":
    main()
