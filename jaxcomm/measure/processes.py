"""Profiles the processes of a job: links, hosts and racks, lost packets, and the arrivals of psums."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from jaxcomm import errors, ffi
from jaxcomm.errors import ProfileError
from jaxcomm.log import say_once
from jaxcomm.measure import incast, lost_packets, placement, psum_loop, rail_times
from jaxcomm.measure.links import MeasuredJob, Progress, measure_transfers
from jaxcomm.measure.placement import PairTimes
from jaxcomm.measure.schedules import JOB_SIZES, LEAST_LATE_S, MOST_LATE_S, Candidates, Lateness, Offers, time_schedules
from jaxcomm.profile import find_straggler
from jaxcomm.profile.files import validate
from jaxcomm.profile.lateness import LEAST_LATENESS
from jaxcomm.profile.racks_and_rails import MOST_LOST, rail_shares
from jaxcomm.profile.schema import FORMAT, VERSION, Collective, Profile

SIZES: Final = tuple(2**power for power in range(10, 25, 2))
SECONDS: Final = 50.0  # seconds for transfers and schedules
_TRANSFERS: Final = {False: 0.2, True: 0.05}  # the share of `seconds` for transfers; the key is `with_xla`

_PSUM_BYTES: Final = 2**20
_ALIGNED: Final = 64  # sizes are multiples of this, so that both halves of a buffer are aligned alike


class Measured(NamedTuple):
    """The profile, and the times from which its links were found."""

    profile: Profile
    transfers: PairTimes


def measure_processes(
    sizes: Sequence[int] = SIZES,
    steps: int = 50,
    schedule_sizes: Sequence[int] | None = None,
    *,
    candidates: Callable[[Profile], Candidates] | None = None,
    with_xla: bool = False,
    seconds: float = SECONDS,
    late: Mapping[int, float] | None = None,
    progress: Progress = lambda share: None,
) -> Measured:
    """Profiles the CPU devices of all processes of a job. All processes call this function.

    The profiles that the processes get differ only in psums and rails. The two ranks of a pair repeatedly send each
    other the same number of bytes. The core measures these exchanges from the last arrival, so no clocks are compared.
    First all ranks exchange at once, in pairs, until each rank has exchanged with every other rank. Jobs of up to 16
    ranks repeat this in three orders of the ranks. Then each pair exchanges alone. With more than 16 ranks, 120 pairs
    exchange alone, drawn with a fixed seed. With more than 64 ranks, each rank exchanges with only 63 others. The racks
    can still be found, because times are averaged per host and all processes publish their hosts' names. If the time
    does not suffice, sizes are left out, the largest first. If there are several hosts, each host then sends packets to
    the next host for five seconds, and the profile records the packet loss of the worst path. Then `steps` psums of 1
    MiB are recorded. Last, whole schedules of all ranks are timed in turns: with no rank late and, if a rank was late
    in the psums, with that rank late.

    Args:
      sizes: bytes in each direction, at least two of them; rounded up to whole cache lines.
      steps: rows of `arrivals`, at least 1.
      schedule_sizes: bytes per rank for which whole schedules are timed; None: `measure.schedules.JOB_SIZES`,
        without the largest sizes if the time does not suffice.
      candidates: returns the schedules worth timing for a profile without timed schedules (`planner.candidates`);
        None: the schedules from `measure.schedules.schedules_of`.
      with_xla: whether XLA's own collectives take turns with jaxcomm's. All collectives are then timed by the host's
        clock (see `measure.clocks`).
      seconds: time for transfers and schedules, roughly. Transfers get a fifth of it, or a twentieth if `with_xla`.
      late: maps ranks to seconds. Each of these ranks is delayed by its seconds, in the psums only.
      progress: called with the finished share, from 0 to 1.

    Raises:
      ProfileError: `jax.distributed` has not connected several processes, or an argument is invalid.
      JaxcommError: a process ended, or missed the deadline.
    """
    late = dict(late or {})
    sizes = sorted({-(-size // _ALIGNED) * _ALIGNED for size in sizes})
    import jax

    devices = jax.devices("cpu")
    timed_sizes = JOB_SIZES if schedule_sizes is None else schedule_sizes
    _check(len(devices), sizes, timed_sizes, steps, seconds, late)
    if jax.process_count() < 2:
        raise ProfileError(
            "this job has one process, so there are no links between processes to measure.\n"
            "  Cure: jaxcomm launch -n 4 -- jaxcomm profile, or jax.distributed.initialize() in each process."
        )
    job = MeasuredJob([device.process_index for device in devices], [device.id for device in devices])
    found = measure_transfers(job, sizes, _TRANSFERS[with_xla] * seconds, lambda share: progress(0.3 * share))
    found = found._replace(incast=incast.measure(found, job.sums))
    rails = rail_times.measure(job, rail_times.SHARE * seconds)
    packet_loss = _count_lost_packets(job, found)
    arrivals, collective = _measure_psums(devices, steps, late)
    progress(0.4)
    hosts = len({*found.hosts})
    where = f"{len(devices)} ranks in {len(job.processes)} processes on {hosts} host{'s' * (hosts != 1)}"
    provenance = psum_loop.provenance(where, late)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "ranks": len(devices),
        **placement.describe(found),
        **packet_loss,
        "rails": [rail.model_dump() for rail in rails],
        "rail_shares": _rail_shares(),
        "arrivals": arrivals,
        "warmup_dropped": psum_loop.WARMUP_STEPS,
        "collective": collective.model_dump(),
        "provenance": provenance.model_dump(),
    }
    profile = validate(_of_first(job, document), provenance.source)
    timed = time_schedules(
        jax.sharding.Mesh(np.array(devices), ("data",)),
        ["messages", "xla"] if with_xla else ["messages"],
        _lateness(profile, with_xla),
        timed_sizes,
        may_skip=schedule_sizes is None,
        offers=Offers(candidates(profile) if candidates else None, profile.network),
        seconds=(1 - _TRANSFERS[with_xla] - rail_times.SHARE * bool(rails)) * seconds,
        progress=lambda share: progress(0.4 + 0.6 * share),
    )
    progress(1.0)
    return Measured(validate({**document, "timed_schedules": timed.model_dump()}, provenance.source), found)


def _of_first(job: MeasuredJob, document: dict[str, Any]) -> Any:
    """Returns the first process's document in all processes, so that all processes time the same schedules.

    The processes' own documents differ in psums and rails.
    """
    from jaxcomm.distributed import store

    key, first = f"profile/links/{job.number}", job.processes[0]
    if job.process == first:
        store.publish(key, json.dumps(document))
    return json.loads(store.lookup(key, f"process {first} has not published the links", first))


def _lateness(profile: Profile, with_xla: bool) -> Lateness | None:
    """The rank that is late in the psums, and its lateness; None if this is too short to affect calls by jaxcomm."""
    assert profile.collective
    found, arrivals = find_straggler(profile), np.sort(np.array(profile.arrivals), axis=1)
    lead_s = float(np.median(arrivals[:, -1] - arrivals[:, -2]))
    if with_xla:  # XLA's late joins are timed even if no rank is late
        return Lateness.of({found.rank: found.median_s} if found.is_late else {}, profile.ranks)
    if lead_s < LEAST_LATENESS * profile.collective.seconds:
        return None
    least_s = min(MOST_LATE_S, max(LEAST_LATE_S, lead_s))
    return Lateness(found.rank, least_s, max(least_s, found.median_s if found.is_late else lead_s))


def _count_lost_packets(job: MeasuredJob, found: PairTimes) -> dict[str, Any]:
    """The profile's `packet_loss`: the share of packets lost on the worst path between two hosts."""
    hosts: dict[int, str] = {}  # host names; the key is the host's first process
    for (process, _), name in zip(job.ranks, job.hosts, strict=True):
        if name not in hosts.values():
            hosts[process] = name
    if len(hosts) < 2:
        return {}
    rates: dict[frozenset[str], float] = {}  # the highest rate between two hosts, because packet loss lowers rates
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
            f"{worst.rate:.0%} of UDP packets from {worst.sender} to {worst.receiver} do not arrive, so the links' "
            "packet loss is unknown; a firewall may stop them."
        )
        return {}
    return {"packet_loss": {"rate": worst.rate}}


def _rail_shares() -> dict[str, float]:
    """The share of this process's large buffers that each rail carries now.

    Sums the shares over all peers that have several rails, and divides each rail's sum by the total.
    """
    return rail_shares((each["rail"], each["shares"][-1][1]) for each in ffi.rails())


def _measure_psums(devices: Sequence[Any], steps: int, late: Mapping[int, float]) -> tuple[Any, Collective]:
    """Returns the ranks' arrivals in each step, by this process's clock, and a psum's size and median time."""
    import jax

    from jaxcomm.collectives import active_plan

    mesh = jax.sharding.Mesh(np.array(devices), ("data",))
    with active_plan.use_plan(None), errors.translated():
        found = psum_loop.run(psum_loop.loop(mesh, late), psum_loop.zeros(mesh, _PSUM_BYTES), steps)
    arrivals = np.round(np.array(found["arrivals"]), 9).tolist()
    return arrivals, Collective(bytes=_PSUM_BYTES, seconds=float(np.median(found["after_arrival_s"])))


def _check(
    ranks: int,
    sizes: Sequence[int],
    schedule_sizes: Sequence[int],
    steps: int,
    seconds: float,
    late: Mapping[int, float],
) -> None:
    wrong = [f"sizes has {len(sizes)} sizes after rounding; at least 2 are needed"] if len(sizes) < 2 else []
    wrong += [f"sizes has {size}; each must be above 0"] if (size := min(sizes, default=1)) < 1 else []
    wrong += [f"schedule_sizes has {size}; each must be 4 bytes or more" for size in schedule_sizes if size < 4]
    wrong += [f"steps is {steps}; it must be from 1 to 256"] if not 1 <= steps <= 256 else []
    wrong += [f"seconds is {seconds}; it must be above 0"] if not 0 < seconds < math.inf else []
    wrong += psum_loop.wrong_late_ranks(late, ranks)
    if wrong:
        raise ProfileError(f"{wrong[0]}.\n  Cure: change it and measure again.")
