"""A program for two processes: a training under a plan with a late rank, monitored by Prometheus.

python -m tests.metrics.monitored PROMETHEUS PORT PORT    Prometheus's host:port, and the port of each process's metrics
"""

from __future__ import annotations

import json
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import prometheus_client
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm.distributed import store
from tests.collectives.plans import SPECS, make
from tests.metrics.monitoring import expressions
from tests.processes.jobs import report

STEPS = 100  # more than a trial needs
LATE_S = 0.02
PATIENCE_S = 60.0


def train() -> None:
    """Averages a gradient in each step. The first steps try the plan."""
    ranks = jax.device_count()
    jaxcomm.init(plan=make((0, None, SPECS["ring"]), ranks=ranks), trial=True)
    mesh = jax.make_mesh((ranks,), ("data",))

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False)
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - 0.1 * jaxcomm.pmean(jax.grad(lambda w: jnp.mean((x @ w - 1) ** 2))(w), "data")

    w = jax.device_put(np.zeros(4096, np.float32), NamedSharding(mesh, P()))
    x = jax.make_array_from_process_local_data(NamedSharding(mesh, P("data")), np.ones((1, 4096), np.float32))
    for _ in range(STEPS):
        time.sleep(LATE_S * jax.process_index())
        w = jax.block_until_ready(step(w, x))


def values(prometheus: str, expression: str) -> list[float]:
    """The values that an expression of the dashboard has now."""
    query = expression.replace("$job", "jaxcomm").replace("$__rate_interval", "1m")
    url = f"http://{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=10) as reply:
        return [float(series["value"][1]) for series in json.load(reply)["data"]["result"]]


def wait_for(holds: Callable[[], bool]) -> None:
    """Waits until a condition holds, for PATIENCE_S at most."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.2)


def main(prometheus: str, *ports: str) -> None:
    jax.distributed.initialize()
    jaxcomm.metrics.register()
    prometheus_client.start_http_server(int(ports[jax.process_index()]), addr="127.0.0.1")
    if jax.process_index() == 0:  # rates need values from before the training
        wait_for(lambda: values(prometheus, "sum(up)") == [2])
        store.publish("scraped", "")
    store.lookup("scraped", "process 0 has not seen that both processes are scraped")
    train()
    if jax.process_index() == 0:
        found: dict[str, list[float]] = {}
        wait_for(
            lambda: found.update({each: values(prometheus, each) for each in expressions()}) or all(found.values())
        )
        report("values", found=found)
        store.publish("monitored", "")
    store.lookup("monitored", "process 0 has not read the values")


if __name__ == "__main__":
    main(*sys.argv[1:])
