"""A program whose sums XLA runs, for several processes, the last of which does not come to one of them."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from tests.processes import jobs

CALLS = 5  # before the last process misbehaves


class Reports(logging.Handler):
    """Reports each line of the log, and the seconds since the last call began."""

    began = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Reports the line."""
        jobs.report("log", text=record.getMessage(), after_s=time.monotonic() - self.began)


def main() -> None:
    way = sys.argv[1]
    jax.distributed.initialize()
    reports = Reports()
    logging.getLogger("jaxcomm").addHandler(reports)
    mesh = Mesh(np.array(jax.devices()), ("data",))

    def placed(rows: int) -> jax.Array:
        full = np.ones(rows, np.float32)
        return jax.make_array_from_callback(full.shape, NamedSharding(mesh, P("data")), lambda index: full[index])

    def mapped(body: object) -> object:
        return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False))

    step, other = mapped(lambda x: jaxcomm.psum(x, "data")), mapped(lambda x: jaxcomm.pmax(2 * x, "data"))
    scanned = mapped(lambda x: lax.scan(lambda c, _: (jaxcomm.pmean(c, "data"), ()), x, length=7)[0])
    x = placed(3 * len(jax.devices()))
    for call in (step, other, scanned):  # compiles them
        jax.block_until_ready(call(x))
    for _ in range(CALLS):
        jax.block_until_ready(step(x))
    jax.block_until_ready(scanned(x))
    time.sleep(1.5)  # each process has published its row
    last = jax.process_index() == jax.process_count() - 1
    if way == "healthy":
        sites = {site["name"]: site for site in jaxcomm.stats()}
        jobs.report("stats", sites=sites)
        jobs.report("stats again", sites={site["name"]: site for site in jaxcomm.stats()})
        return
    reports.began = time.monotonic()
    if last and way == "sleeps":
        time.sleep(5)
    if last and way == "late":
        for _ in range(8):
            time.sleep(0.1)
            jax.block_until_ready(step(x))
    elif way == "late":
        for _ in range(8):
            jax.block_until_ready(step(x))
    if way == "late":
        time.sleep(1.5)
        jobs.report("stats", sites={site["name"]: site for site in jaxcomm.stats()})
        return
    if last and way == "stops":
        subprocess.Popen(["sh", "-c", f"sleep 7; kill -9 {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    if last and way == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if last and way == "elsewhere":
        jax.block_until_ready(other(x))
    jax.block_until_ready(step(x))


if __name__ == "__main__":
    main()
