"""A job with plan="auto" whose processes switch to a plan, to another one and back while they sum, and measure the
links in between; run by the test.
"""

from __future__ import annotations

import threading
from functools import partial

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm import auto_plan, planner
from jaxcomm.auto_plan import agreement, links
from jaxcomm.auto_plan.agreement import Agreement
from jaxcomm.auto_plan.plan_switches import Switches
from jaxcomm.auto_plan.planning import profile_of
from jaxcomm.plan import encode
from jaxcomm.profile import Profile
from tests.processes import jobs

SIZE = 30_000
STEPS = 50  # that processes take together, until all have switched


def profile(late: int) -> Profile:
    rows = np.random.default_rng(0).uniform(0, 1e-6, (32, 4))
    rows[:, late] += 1e-3
    links = {"link": {"alpha_s": 1e-6, "beta_s_per_byte": 1e-8, "source": "a test"}}
    return profile_of(links, rows - rows.min(axis=1, keepdims=True), 4 * SIZE, 1e-3)


def main() -> None:
    jax.distributed.initialize()
    first = jax.process_index() == 0
    auto_plan.begin = lambda mesh: None  # nothing but what follows switches plans
    jaxcomm.init(plan="auto")
    mesh = jax.make_mesh((4,), ("data",))
    shard = partial(jax.shard_map, mesh=mesh, in_specs=P("data"), out_specs=P("data"))

    @jax.jit
    @shard
    def step(x: jax.Array) -> jax.Array:
        return jaxcomm.psum(x, "data") - jaxcomm.pmax(x[:5].sum(), "data")

    @jax.jit
    @shard
    def reference(x: jax.Array) -> jax.Array:
        return jax.lax.psum(x, "data") - jax.lax.pmax(x[:5].sum(), "data")

    values = np.random.default_rng(1).integers(0, 100, 4 * SIZE).astype(np.float32)  # sums in any order are exact
    x = jax.make_array_from_callback(values.shape, NamedSharding(mesh, P("data")), lambda index: values[index])
    expected = np.asarray(reference(x).addressable_shards[0].data)
    agreement._AHEAD_S = 0.2
    switched: list[str] = []
    if first:
        plans = [encode(planner.plan(profile(late))) for late in (3, 1)] + [""]
    end = threading.Event()
    agreed = Agreement(Switches(), jax.process_index(), range(4), "auto", end, partial(links.measure, jax.devices()))

    paused: list[links.MeasuredLinks] = []  # the links, measured while sums wait

    def propose() -> None:
        for text in plans:
            while not agreed.propose(text):
                pass
            switched.append(text)
            while not (measured := agreed.pause()):
                pass
            paused.append(measured)

    def follow() -> None:
        while not end.wait(0.01):
            switched.extend(["plan"] * agreed.follow())

    thread = threading.Thread(target=propose if first else follow)
    thread.start()
    over = jax.jit(shard(lambda x: jax.lax.pmin(x, "data")))
    ready = partial(jax.make_array_from_callback, (4,), NamedSharding(mesh, P("data")))
    steps, wrong, is_over = 0, 0, False
    while not is_over:
        for _ in range(STEPS):
            wrong += not np.array_equal(np.asarray(step(x).addressable_shards[0].data), expected)
            steps += 1
        mine = np.float32(first and not thread.is_alive())
        total = over(ready(lambda index, mine=mine: np.full(1, mine if first else 1, np.float32)))
        is_over = float(total.addressable_shards[0].data[0]) == 1
    for _ in range(STEPS):  # past the launch of the last switch
        wrong += not np.array_equal(np.asarray(step(x).addressable_shards[0].data), expected)
    end.set()
    thread.join()
    betas = [measured.links["link"]["beta_s_per_byte"] for measured in paused]
    calls = {site["plan"]: site["calls"] for site in jaxcomm.stats() if site["bytes"] == 4 * SIZE and site["calls"]}
    jobs.report(
        "auto_plan",
        wrong=wrong,
        switched=len(switched),
        calls=calls,
        steps=steps + STEPS,
        plans=jaxcomm.stats().plans,
        betas=betas,
    )


if __name__ == "__main__":
    main()
