"""How the shares of two rails follow a rate that changes in the run, beside fixed shares.

    jaxcomm testbed run benchmarks/rail_rates.toml -- python benchmarks/rail_rates.py

In each round all ranks sum the same bytes three times, in turn: with shares that adapt in the run, with shares fixed by
the rails' rates, and with shares fixed by the rates while the second rail is slow (`--slow`). An oracle would use the
better fixed shares in each part of the run. A row is for 25 rounds. Its shares, in percent, are the second rail's part
of the bytes that each host sends to the next one. The second host's link is slow for a while.
"""

from __future__ import annotations

import itertools
import statistics
import time

import jax
import numpy as np
from absl import app, flags
from jax.experimental import multihost_utils
from sums import call

import jaxcomm
from jaxcomm.cli.common import spmd
from jaxcomm.distributed.connect import members
from jaxcomm.distributed.connect.settings import from_environment
from jaxcomm.ffi.shares import UNITS, PlanRail, PlanRails, SharesFrom, in_units
from jaxcomm.report.tables import seconds_text, table

BYTES = flags.DEFINE_integer("bytes", 16 << 20, "of each rank's buffer")
ROUNDS = flags.DEFINE_integer("rounds", 500, "in all", lower_bound=1)
SLOW = flags.DEFINE_integer("slow", 200, "Mbit/s of the second rail while it is slow; 0: no fixed shares beside")
ROW = 25  # rounds
STEP = 64  # bytes between the sizes of two ways; the share table distinguishes the ways by size
FIXED_CALLS = 20  # calls of one size; after 25 its shares would adapt


def main(_: list[str]) -> None:
    """Calls, and prints on the first process."""
    jax.distributed.initialize()
    rates = {rail.name: rail.rate for rail in from_environment().rails}
    second = [*rates][1]
    splits = [rates, {**rates, second: SLOW.value}] if SLOW.value else []
    shares = [dict(zip(each, in_units([*each.values()]), strict=True)) for each in [rates, *splits]]
    parts = -(-ROUNDS.value // FIXED_CALLS) if splits else 0
    # The largest size is that of the adapting shares.
    planned = [
        SharesFrom(BYTES.value + (number * len(splits) + way) * STEP, shares[1 + way])
        for number in range(parts)
        for way in range(len(splits))
    ]
    planned.append(SharesFrom(BYTES.value + parts * len(splits) * STEP, shares[0]))
    named = tuple(PlanRail(name, "tcp", float(rate)) for name, rate in rates.items())
    members.connected(planned=PlanRails(named, (SharesFrom(0, shares[0]), *planned)))
    calls = [call(jaxcomm.psum, jax.devices(), each.min_bytes) for each in planned]
    together = call(jaxcomm.psum, jax.devices(), STEP)
    begin = time.monotonic()
    rounds: list[list[float]] = []
    shares_found, rows = list[float](), list[list[object]]()
    for number in range(ROUNDS.value):
        part = number // FIXED_CALLS * len(splits)
        seconds = []
        for made in [calls[-1], *calls[part : part + len(splits)]]:
            spmd.wait(together())  # all ranks begin the next call together
            start = time.perf_counter()
            spmd.wait(made())
            seconds.append(time.perf_counter() - start)
        rounds.append(seconds)
        shares_found.append(share(second))
        if (number + 1) % ROW:
            continue
        ends = multihost_utils.process_allgather(np.array([min(shares_found[-ROW:]), max(shares_found[-ROW:])]))
        medians = [statistics.median(each) for each in zip(*rounds[-ROW:], strict=True)]
        best = f"{medians[0] / min(medians[1:]) - 1:+.1%}" if splits else "-"
        of_hosts = [f"{100 * low:.0f}-{100 * high:.0f}" for low, high in ends]
        rows.append([f"{time.monotonic() - begin:.0f} s", number + 1, *of_hosts, *map(seconds_text, medians), best])
        if jax.process_index() == 0:
            print(*rows[-1], sep="  ", flush=True)
    changes = sum(one != other for one, other in itertools.pairwise(shares_found))
    print(f"{changes} changes of this host's share in {len(shares_found)} rounds", flush=True)
    if jax.process_index() == 0:
        hosts = [f"{number} to {(number + 1) % jax.process_count()}" for number in range(jax.process_count())]
        ways = ["as found", *(":".join(map(str, each.values())) for each in splits)]
        print(table(["after", "rounds", *hosts, *ways, "beside the best"], rows))


def share(rail: str) -> float:
    """The rail's part of the bytes that this process sends to the next one in calls with adapting shares."""
    to = (jax.process_index() + 1) % jax.process_count()
    states = {(each["process"], each["rail"]): each for each in jaxcomm.stats().rails}
    part: int = states[to, rail]["shares"][-1][1]
    return part / UNITS


if __name__ == "__main__":
    app.run(main)
