"""Each process of `benchmarks/incast.py`: in every round all but the first send the first one a message at once.

The first prints "@incast MIB SECONDS SECONDS ..." in each round: for each sender, the time from the common start until
its message has arrived.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import sys
import time

import jax
import numpy as np

from jaxcomm import ffi
from jaxcomm.distributed import calls
from jaxcomm.distributed.connect import members
from jaxcomm.program.messages import BUFFER, RankMessages, Receive, Round, Send

READY_S = 0.05  # time for the first process to post all receives


def main(sizes: list[int], rounds: int) -> None:
    """Sends or receives."""
    jax.distributed.initialize()
    members.connected()
    process, processes = jax.process_index(), jax.process_count()
    senders = range(1, processes)
    one_way = ffi.register_messages(
        (
            RankMessages(2, 0, 1, 0, (Round([Send(1, 0)], [], []),)).encode(),
            RankMessages(2, 1, 1, 0, (Round([], [Receive(0, 0, BUFFER)], []),)).encode(),
        )
    )
    numbers = itertools.count()

    def agree(begin: float) -> float:
        """The first process's `begin`, by the clock that all hosts of a testbed share."""
        everybody = [(each, each) for each in range(processes)]
        values = np.array([[begin if process == 0 else 0.0]]).view(np.uint8)  # summed byte by byte; others add 0
        calls.run("agreeing", next(numbers), f"all_reduce/flat/{processes}", everybody, values)
        return float(values.view(float)[0, 0])

    def call(sender: int, number: int, values: np.ndarray) -> float:
        calls.run(f"a message of {sender}", number, one_way, [(sender, sender), (0, 0)], values)
        return time.perf_counter()

    for mib in sizes:
        own = np.random.default_rng(process).integers(256, size=(1, mib << 20), dtype=np.uint8)
        taken = [np.zeros_like(own) for _ in senders]
        for round_ in range(rounds + 2):
            begin = agree(time.perf_counter() + READY_S)
            mine = [next(numbers) for _ in senders]
            if process != 0:
                time.sleep(max(0.0, begin - time.perf_counter()))
                call(process, mine[process - 1], own)
                continue
            with concurrent.futures.ThreadPoolExecutor(len(senders)) as pool:
                seconds = [end - begin for end in pool.map(call, senders, mine, taken)]
            if round_ >= 2:  # the first two find the line's rate
                print(f"@incast {mib}", *(f"{each:.6f}" for each in seconds), flush=True)
        for sender in senders if process == 0 else ():
            sent = np.random.default_rng(sender).integers(256, size=(1, mib << 20), dtype=np.uint8)
            assert np.array_equal(taken[sender - 1], sent), f"process {sender} sent something else"
    agree(0.0)  # no process leaves while others receive


if __name__ == "__main__":
    main([int(mib) for mib in sys.argv[1].split(",")], int(sys.argv[2]))
