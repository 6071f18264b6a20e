"""Two processes, of which the second is killed while a child that it has forked lives on."""

from __future__ import annotations

import atexit
import os
import signal
import time

import jax

import jaxcomm
from tests.processes import jobs
from tests.processes.faults import step_of


def main() -> None:
    jax.distributed.initialize()
    atexit.register(os._exit, 0)  # called last: JAX's own end, which waits for all processes, is left out
    step, x = step_of(2, 1 << 20)
    x = jax.block_until_ready(step(x))
    if jax.process_index() == 1:
        child = os.fork()
        if child == 0:
            signal.alarm(200)
            while True:
                signal.pause()
        jobs.report("forked", child=child, at=time.time())
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        with jaxcomm.errors.translated():
            while True:
                x = jax.block_until_ready(step(x))
    except jaxcomm.errors.JaxcommError as error:
        jobs.report("call", error=str(error), at=time.time())


if __name__ == "__main__":
    main()
