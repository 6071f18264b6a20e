"""A program whose sums XLA runs, for several processes, one of which is late, stops or dies."""

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

CALLS = 5  # after the compilation, and before a process misbehaves
SCANNED = 7  # calls of a scan


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

    step = mapped(lambda x: jaxcomm.psum(x, "data"))
    scanned = mapped(lambda x: lax.scan(lambda c, _: (jaxcomm.pmax(c, "data"), ()), x, length=SCANNED)[0])
    x = placed(3 * len(jax.devices()))
    for call in (step, scanned):  # compiles them
        jax.block_until_ready(call(x))
    for _ in range(CALLS):
        jax.block_until_ready(step(x))
    jax.block_until_ready(scanned(x))
    time.sleep(1.5)  # each process has published its row
    if way == "healthy":
        for case in ("stats", "stats again"):
            jobs.report(case, sites={site["name"]: site for site in jaxcomm.stats()})
        return
    late = jax.process_index() == (0 if way == "first stops" else jax.process_count() - 1)
    reports.began = time.monotonic()
    if way == "late":
        for _ in range(8):
            time.sleep(0.1 * late)
            jax.block_until_ready(step(x))
        time.sleep(1.5)
        jobs.report("stats", sites={site["name"]: site for site in jaxcomm.stats()})
        return
    if late and way == "sleeps":
        time.sleep(5)
    if late and way in ("stops", "first stops"):
        # The others end themselves before this process is killed.
        subprocess.Popen(["sh", "-c", f"sleep 12; kill -9 {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    if late and way == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        jax.block_until_ready(step(x))
    except ValueError:  # Gloo has lost its peer
        time.sleep(4)
        os._exit(3)


if __name__ == "__main__":
    main()
