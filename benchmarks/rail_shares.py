"""Times of an all-reduce over the rails of a job: by their rates, on each alone, and split evenly.

    jaxcomm testbed run jaxcomm/testbed/examples/two_rails.toml -- python benchmarks/rail_shares.py

All ways take turns in one run. Each has its own size, by which the share table distinguishes them. With `--gloo` the
turns include `jax.lax.psum` over the first rail, and over all rails by MPTCP (`mptcp.c`):

    cc -shared -fPIC -o build/mptcp.so benchmarks/mptcp.c
    jaxcomm testbed run FILE -- env LD_PRELOAD=build/mptcp.so python benchmarks/rail_shares.py --gloo
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import mptcp
import turns
from absl import app, flags
from sums import call

import jaxcomm
from jaxcomm.cli.bench_late import single
from jaxcomm.cli.common import spmd
from jaxcomm.cli.common.arguments import Late
from jaxcomm.distributed.connect import members
from jaxcomm.distributed.connect.settings import from_environment
from jaxcomm.ffi.shares import PlanRail, PlanRails, SharesFrom, in_units
from jaxcomm.report.tables import bytes_text, seconds_text, table

BYTES = flags.DEFINE_multi_integer("bytes", [16 << 20], "of each rank's buffer; may be given several times")
ROUNDS = flags.DEFINE_integer("rounds", 10, "turns of each way", lower_bound=1)
SCHEDULE = flags.DEFINE_string(
    "schedule", None, "also by this one, such as direct, in place of what runs without a plan"
)
GLOO = flags.DEFINE_bool("gloo", False, "also by jax.lax.psum, over the first rail and over all by MPTCP")
OUT = flags.DEFINE_string("out", None, "also write the seconds of each turn to this file, as JSON", allow_override=True)
STEP = 64  # bytes between the sizes of two ways


class Median(NamedTuple):
    """The median of a way's times and its standard error, in seconds."""

    seconds: float
    error: float


def ways() -> dict[str, dict[str, int]]:
    """The shares of each way, by rail. The first way splits by the rails' rates."""
    rates = {rail.name: rail.rate for rail in from_environment().rails}
    weights = {"by their rates": rates} | ({f"by their rates, {SCHEDULE.value}": rates} if SCHEDULE.value else {})
    weights |= {"evenly": dict.fromkeys(rates, 1)} | {f"{name} alone": {name: 1} for name in rates}
    return {way: dict(zip(each, in_units([*each.values()]), strict=True)) for way, each in weights.items()}


def share_table(sizes: Sequence[int], every: Mapping[str, Mapping[str, int]]) -> list[SharesFrom]:
    """Each way's shares, from each of its sizes on. The first begin at 0, as a table must hold for all sizes."""
    found = [
        SharesFrom(nbytes + number * STEP, shares)
        for nbytes in sorted(sizes)
        for number, shares in enumerate(every.values())
    ]
    return [found[0]._replace(min_bytes=0), *found[1:]]


def gloo_calls() -> dict[int, dict[str, Callable[[], Any]]]:
    """The ways of `jax.lax.psum`, by size.

    Gloo opens its listener with the backend, and connects at the first sum over devices in a new order.
    """
    mptcp.use_rails([rail.name for rail in from_environment().rails])
    with mptcp.sockets():
        devices = jax.devices()
        several = {nbytes: call(jax.lax.psum, devices[::-1], nbytes) for nbytes in BYTES.value}
    return {
        nbytes: {"Gloo, first rail": call(jax.lax.psum, devices, nbytes), "Gloo, MPTCP": made}
        for nbytes, made in several.items()
    }


def measure(calls: Mapping[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """The seconds of each way's turns."""
    seconds: dict[str, list[float]] = {way: [] for way in calls}
    for _ in range(ROUNDS.value):
        for way, made in calls.items():
            spmd.wait(made())  # all ranks begin the next call together
            start = time.perf_counter()
            spmd.wait(made())
            seconds[way].append(time.perf_counter() - start)
    return seconds


def together(seconds: Mapping[str, Sequence[float]]) -> list[float]:
    """The seconds of each turn if all rails worked at once, each at the rate that it has alone."""
    alone = [each for way, each in seconds.items() if way.endswith(" alone")]
    return [1 / sum(1 / each for each in turn) for turn in zip(*alone, strict=True)]


def median(ascending: Sequence[float]) -> Median:
    """The median and its standard error, for any distribution.

    The values √n / 2 places to either side of the median are one standard error away.
    """
    middle, places = (len(ascending) - 1) / 2, len(ascending) ** 0.5 / 2
    low, high = ascending[max(0, round(middle - places))], ascending[min(len(ascending) - 1, round(middle + places))]
    return Median(statistics.median(ascending), (high - low) / 2)


def rows(every: Mapping[str, Median]) -> list[list[object]]:
    """For each way: its median, the standard error, and its speed relative to the rails' sum and the best rail."""
    alone = [seconds for way, (seconds, _) in every.items() if way.endswith(" alone")]
    best, together = min(alone), 1 / sum(1 / seconds for seconds in alone)
    return [
        [way, seconds_text(seconds), f"{error / seconds:.1%}", f"{together / seconds:.1%}", f"{best / seconds:.3f}"]
        for way, (seconds, error) in every.items()
    ]


def main(_: list[str]) -> None:
    """Measures and prints."""
    jax.distributed.initialize()
    every = ways()
    by_gloo = gloo_calls() if GLOO.value else {}
    named = tuple(
        PlanRail(name, "tcp", 0.0) for name in dict.fromkeys(name for each in every.values() for name in each)
    )
    members.connected(planned=PlanRails(named, tuple(share_table(BYTES.value, every))))
    plan = single(SCHEDULE.value, jax.device_count(), Late(0, 0.0)) if SCHEDULE.value else None
    written = []
    for nbytes in sorted(BYTES.value):
        calls = by_gloo.get(nbytes, {})
        for number, way in enumerate(every):
            psum = functools.partial(jaxcomm.psum, plan=plan if way.endswith(f", {SCHEDULE.value}") else None)
            calls[way] = call(psum, jax.devices(), nbytes + number * STEP)
        found = measure(calls)
        if jax.process_index() == 0:
            written.append(turns.row({**found, "all rails added up": together(found)}, bytes=nbytes))
            medians = {way: median(sorted(each)) for way, each in found.items()}
            what = f"{bytes_text(nbytes)}, {jax.device_count()} ranks"
            print(table([what, "median", "±", "of the rails' sum", "of the best rail"], rows(medians)), flush=True)
    if jax.process_index() == 0:
        turns.write(OUT.value, written)


if __name__ == "__main__":
    app.run(main)
