"""Each process of `benchmarks/rail_cuts.py`: makes all-reduces until the first process announces the end.

Prints "@call BEGIN END RIGHT" after each, and "@lost AT COUNT" whenever the number of its lost rails changes. Seconds
are of the monotonic clock, which all hosts of a testbed share.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm.distributed.connect import members

VARIANTS = 5
DEADLINE_S, HANGS_S = 30.0, 60.0
LAST = 2.0**20
LOOK_S = 0.02


def own(elements: int, rank: int, number: int) -> np.ndarray:
    """Integers that differ by rank, element and call."""
    return ((np.arange(elements) + 13 * rank + number % VARIANTS) % 97).astype(np.float32)


def say(line: str) -> None:
    """Prints a line in one write, because two threads print."""
    os.write(1, f"{line}\n".encode())


def report_lost() -> None:
    """Says when rails are lost and restored."""
    core, before = members.connected().core, 0
    while True:
        count = len(core.lost_rails())
        if count != before:
            say(f"@lost {time.monotonic():.4f} {count}")
        before = count
        time.sleep(LOOK_S)


def main(elements: int, end_file: str) -> None:
    """Calls, checks and reports."""
    jax.distributed.initialize()
    jaxcomm.init(deadline_s=DEADLINE_S)
    rank, ranks = jax.process_index(), jax.process_count()
    mesh = Mesh(np.array(jax.devices()), ("d",))
    sharding = NamedSharding(mesh, P("d"))

    def place(mine: np.ndarray) -> jax.Array:
        return jax.make_array_from_process_local_data(sharding, mine, (ranks * elements,))

    psum = jax.jit(jax.shard_map(lambda x: jaxcomm.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P("d")))
    inputs = [place(own(elements, rank, number)) for number in range(VARIANTS)]
    totals = [sum(own(elements, each, number) for each in range(ranks)) for number in range(VARIANTS)]
    members.connected()
    threading.Thread(target=report_lost, daemon=True).start()
    number, is_last = 0, False
    while not is_last:
        faulthandler.dump_traceback_later(HANGS_S, exit=True)
        x, total = inputs[number % VARIANTS], totals[number % VARIANTS]
        if rank == 0 and os.path.exists(end_file):  # the sum announces the end to all
            mine = own(elements, rank, number)
            mine[0] += LAST
            x = place(mine)
        begin = time.monotonic()
        found = np.asarray(jax.block_until_ready(psum(x)).addressable_shards[0].data)
        end = time.monotonic()
        is_last = found[0] >= LAST
        is_right = np.array_equal(found[1:], total[1:]) and found[0] == total[0] + LAST * is_last
        say(f"@call {begin:.4f} {end:.4f} {int(is_right)}")
        number += 1
    say("@end")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
