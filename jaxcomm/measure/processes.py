"""Profiles the processes of a job: links, hosts and racks, lost packets, and the arrivals of psums."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from jaxcomm import errors, ffi
from jaxcomm.errors import ProfileError
from jaxcomm.log import say_once
from jaxcomm.measure import incast, lost_packets, placement, psum_loop
from jaxcomm.measure.links import MeasuredJob, Progress, measure_transfers
from jaxcomm.measure.placement import Exchanges
from jaxcomm.measure.schedules import JOB_SIZES, time_schedules
from jaxcomm.profile.files import validate
from jaxcomm.profile.racks_and_rails import MOST_LOST, rail_shares
from jaxcomm.profile.schema import FORMAT, VERSION, Collective, Profile

SIZES: Final = tuple(2**power for power in range(10, 25, 2))
SECONDS: Final = 50.0  # for transfers and schedules
_TRANSFERS: Final = {False: 0.2, True: 0.05}  # of them, for the transfers; with XLA's collectives

_PSUM_BYTES: Final = 2**20
_ALIGNED: Final = 64  # sizes are multiples of it, so that halves of a buffer are alike


class Measured(NamedTuple):
    """The profile, and the times from which its links were found."""

    profile: Profile
    transfers: Exchanges


def measure_processes(
    sizes: Sequence[int] = SIZES,
    steps: int = 50,
    schedule_sizes: Sequence[int] = JOB_SIZES,
    *,
    with_xla: bool = False,
    seconds: float = SECONDS,
    late: Mapping[int, float] | None = None,
    progress: Progress = lambda share: None,
) -> Measured:
    """Profiles the CPU devices of all processes of a job. All call it, and all get the same profile but for arrivals.

    Two ranks exchange as many bytes in both directions, again and again, and the core times that from the last
    arrival: no clocks are compared. First all ranks do so in pairs at once, each with every other one, in several
    orders; then each pair alone. Of more than 16 ranks 120 pairs are measured alone, drawn with a fixed seed, and of
    more than 64 each rank meets 63 others: enough to find the racks of hosts, whose names all processes publish. Sizes
    are left out, from the largest, as far as the time does not suffice. Then whole schedules of all ranks are timed in
    turns, with nobody late and with one rank late: the one that is latest in `late`, or the last one. Several hosts
    then each send the next one packets, for five seconds, and the profile has the share that gets lost on the worst
    way. Then `steps` psums of 1 MiB are watched.

    Args:
      sizes: bytes in each direction, at least two of them; rounded up to whole cache lines.
      steps: rows of `arrivals`, at least 1.
      schedule_sizes: bytes per rank for which whole schedules are timed.
      with_xla: whether XLA's own collectives take turns with ours, all by the host's clock (see `measure.clocks`).
      seconds: for transfers and schedules, roughly; a fifth of them for transfers, or a twentieth with XLA's.
      late: seconds by rank by which to make ranks late on purpose, in the psums only.
      progress: called with the finished share, from 0 to 1.

    Raises:
      ProfileError: this process is not one of several that are connected by `jax.distributed`, or an argument is
        invalid.
      JaxcommError: a process ended, or missed the deadline.
    """
    late = dict(late or {})
    sizes = sorted({-(-size // _ALIGNED) * _ALIGNED for size in sizes})
    import jax

    devices = jax.devices("cpu")
    _check(len(devices), sizes, steps, seconds, late)
    if jax.process_count() < 2:
        raise ProfileError(
            "this process is not one of several, so there are no links between processes to measure.\n"
            "  Cure: jaxcomm launch -n 4 -- jaxcomm profile, or jax.distributed.initialize() in each process."
        )
    job = MeasuredJob([device.process_index for device in devices], [device.id for device in devices])
    found = measure_transfers(job, sizes, _TRANSFERS[with_xla] * seconds, lambda share: progress(0.4 * share))
    found = found._replace(incast=incast.measure(found, job.sums))
    mesh = jax.sharding.Mesh(np.array(devices), ("data",))
    timed = time_schedules(
        mesh,
        "messages",
        late,
        schedule_sizes,
        with_xla=with_xla,
        seconds=(1 - _TRANSFERS[with_xla]) * seconds,
        progress=lambda share: progress(0.4 + 0.5 * share),
    )
    packet_loss = _count_lost_packets(job, found)
    arrivals, collective = _measure_psums(devices, steps, late)
    progress(1.0)
    hosts = len({*found.hosts})
    where = f"{len(devices)} ranks in {len(job.processes)} processes on {hosts} host{'s' * (hosts != 1)}"
    provenance = psum_loop.provenance(where, late)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "ranks": len(devices),
        **placement.describe(found),
        **packet_loss,
        "rail_shares": _rail_shares(),
        "arrivals": arrivals,
        "warmup_dropped": psum_loop.WARMUP_STEPS,
        "collective": collective.model_dump(),
        "timed_schedules": timed.model_dump(),
        "provenance": provenance.model_dump(),
    }
    return Measured(validate(document, provenance.source), found)


def _count_lost_packets(job: MeasuredJob, found: Exchanges) -> dict[str, Any]:
    """The profile's `loss`: the share of packets lost between the two hosts that lose most."""
    hosts: dict[int, str] = {}  # by the first process of each
    for (process, _), name in zip(job.ranks, job.hosts, strict=True):
        if name not in hosts.values():
            hosts[process] = name
    if len(hosts) < 2:
        return {}
    rates: dict[frozenset[str], float] = {}  # the best of each two hosts, as lost packets slow TCP down, too
    for each in (*found.alone, *found.loaded):
        for (one, other), seconds in zip(each.pairs, each.seconds, strict=True):
            if len(ends := frozenset((found.hosts[one], found.hosts[other]))) == 2:
                rates[ends] = max(rates.get(ends, 0.0), float((np.array(found.sizes) / seconds).max()))
    lost = lost_packets.measure(hosts, min(rates.values()), job.number)
    worst = max(lost, key=lambda each: each.rate, default=None)
    if worst is None:
        return {}
    if worst.rate > MOST_LOST:
        say_once(
            f"{worst.rate:.0%} of UDP packets from {worst.sender} to {worst.receiver} do not come, so what links lose "
            "is not known; a firewall may stop them."
        )
        return {}
    return {"packet_loss": {"rate": worst.rate}}


def _rail_shares() -> dict[str, float]:
    """The shares of a large buffer that the rails of this process carry now, over all processes that have several."""
    return rail_shares((each["rail"], each["shares"][-1][1]) for each in ffi.rails())


def _measure_psums(devices: Sequence[Any], steps: int, late: Mapping[int, float]) -> tuple[Any, Collective]:
    """The arrivals of each step by this process's clock, and the median psum."""
    import jax

    from jaxcomm.collectives import communicator

    mesh = jax.sharding.Mesh(np.array(devices), ("data",))
    with communicator.use_plan(None), errors.translated():
        found = psum_loop.run(psum_loop.loop(mesh, late), psum_loop.zeros(mesh, _PSUM_BYTES), steps)
    arrivals = np.round(np.array(found["arrivals"]), 9).tolist()
    return arrivals, Collective(bytes=_PSUM_BYTES, seconds=float(np.median(found["after_arrival_s"])))


def _check(ranks: int, sizes: Sequence[int], steps: int, seconds: float, late: Mapping[int, float]) -> None:
    wrong = [f"sizes has {len(sizes)} sizes after rounding; at least 2 are needed"] if len(sizes) < 2 else []
    wrong += [f"sizes has {size}; each must be above 0"] if (size := min(sizes, default=1)) < 1 else []
    wrong += [f"steps is {steps}; it must be from 1 to 256"] if not 1 <= steps <= 256 else []
    wrong += [f"seconds is {seconds}; it must be above 0"] if not 0 < seconds < math.inf else []
    wrong += psum_loop.wrong_late_ranks(late, ranks)
    if wrong:
        raise ProfileError(f"{wrong[0]}.\n  Cure: change it and measure again.")
