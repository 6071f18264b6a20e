"""A program for several processes that knows nothing of jaxcomm, in which the last process makes mistakes.

Words: the case. Each process reports the error that it got, the fields that jaxcomm has of it, and whether the next sum
works.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcomm.errors import from_jax
from tests.processes import jobs

LATE_S = 12  # longer than the test's deadline, which is long enough for processes that compile beside other work


def sums(body: Any, elements: int, devices: Any = None) -> Any:
    mesh = Mesh(np.array(devices or jax.devices()), ("x",))
    value = np.ones(mesh.size * elements, np.float32)
    array = jax.make_array_from_callback(value.shape, NamedSharding(mesh, P("x")), lambda index: value[index])
    step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P(), check_vma=False))
    return lambda: step(array)


def main(case: str) -> None:
    jax.distributed.initialize()
    errs = jax.process_index() == jax.process_count() - 1
    works = sums(lambda x: lax.psum(x, "x"), 8)
    for _ in range(3):
        works().block_until_ready()
    begun = time.monotonic()
    error = ""
    fields: dict[str, Any] = {}
    try:
        if case == "late with many in flight" and errs:
            time.sleep(LATE_S)
        if case.startswith("dead") and errs:
            os.kill(os.getpid(), signal.SIGKILL)
        if case == "stopped" and errs:
            subprocess.Popen(["sh", "-c", f"sleep {LATE_S}; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
        if case == "stopped in its call":
            if errs:
                words = f"sleep 2; kill -STOP {os.getpid()}; sleep {LATE_S}; kill -CONT {os.getpid()}"
                subprocess.Popen(["sh", "-c", words])
            else:
                time.sleep(5)
        if case == "other shape":
            sums(lambda x: lax.psum(x, "x"), 16 if errs else 8)().block_until_ready()
        elif case == "other reduction":
            sums(lambda x: lax.pmax(x, "x") if errs else lax.pmin(x, "x"), 8)().block_until_ready()
        elif case == "other order":
            order = [jax.devices(), jax.devices()[-2:]][:: -1 if errs else 1]
            for devices in order if jax.local_devices()[0] in jax.devices()[-2:] else order[:1]:
                sums(lambda x: lax.psum(x, "x"), 16, devices)().block_until_ready()
        elif case.endswith("many in flight"):
            jax.block_until_ready([works() for _ in range(50)])
        elif case == "exit with pending steps":
            results = [works() for _ in range(50)]
            jobs.report(case, error="", seconds=0.0, next="")
            del results
            return
        else:
            works().block_until_ready()
    except Exception as caught:
        error = str(caught)
        ours = from_jax(caught)
        fields = {"ours": str(ours), **vars(ours)} if ours else {}
    seconds = time.monotonic() - begun
    following = ""
    if not case.startswith("dead"):
        time.sleep(max(0.0, LATE_S + 3 - seconds))  # the late one comes, too
        try:
            assert np.asarray(works().addressable_data(0))[0] == jax.device_count()
        except Exception as caught:
            following = str(caught)
    jobs.report(case, error=error, fields=fields, seconds=seconds, next=following)
    time.sleep(2 if jax.process_index() == 0 else 0)  # with the first process JAX ends all
    os._exit(0)  # JAX's own shutdown waits for the dead


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]))
