"""A program for two processes that ends at once, while the first one has yet to connect with the other.

Words: the seconds by which the first process's connecting is late.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import jax

from jaxcomm.distributed.connect import members


def main(late_s: float) -> None:
    jax.distributed.initialize()
    connect_as = members.connect_as

    def late(*args: Any) -> Any:
        time.sleep(late_s)
        return connect_as(*args)

    if os.environ["SLURM_PROCID"] == "0":  # before JAX has devices
        members.connect_as = late
    jax.devices()


if __name__ == "__main__":
    main(float(sys.argv[1]))
