"""`jaxcomm plan --try`: the best candidates of each byte range run here, and the fastest one stands in the plan.

Imports JAX: to be imported after `job.use_devices`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Final, NamedTuple

import numpy as np

from jaxcomm import schedules
from jaxcomm.auto_plan import gain
from jaxcomm.cli import bench_late
from jaxcomm.cli.common import job
from jaxcomm.collectives import communicator
from jaxcomm.collectives.default_schedules import default_schedule
from jaxcomm.distributed import members
from jaxcomm.distributed.job import is_job
from jaxcomm.errors import JaxcommError
from jaxcomm.plan import Plan
from jaxcomm.plan.values import Alternative, Candidate, Entry, MeasuredTimes, Nccl, Plain, Rotation, Spec
from jaxcomm.planner.make_plan import uses_template
from jaxcomm.planner.rounding import significant
from jaxcomm.profile import Profile, straggler

CANDIDATES: Final = 3  # of each byte range, beside the default schedule
MOST_BYTES: Final = 64 << 20  # of a buffer that is timed
_ROUNDS: Final = 10  # of a range, at most
_LEAST_GAIN: Final = 0.02  # on the default schedule
_LATE_PART: Final = 0.5  # of the limit that late ranks may take
_DEFAULT: Final = "default"


class Tried(NamedTuple):
    """The outcome of --try.

    Attributes:
      plan: with the fastest schedules.
      seconds: that it took.
      ranges: byte ranges that were timed.
      left: those that were not, for lack of time, or because their calls are larger than MOST_BYTES or have a selector.
      delays: seconds by which ranks were late, by rank.
    """

    plan: Plan
    seconds: float
    ranges: int
    left: int
    delays: Mapping[int, float]


def tried(
    made: Plan, profile: Profile, limit_s: float, each_range: Callable[[], object], nbytes: int | None = None
) -> Tried:
    """The plan with the schedules that were fastest here; all processes of a job call it, and get the first one's.

    Args:
      made: from this profile. Entries that the core does not run stay as they are.
      profile: says who is late.
      limit_s: seconds; a range that has begun ends its first turns.
      each_range: called after each byte range.
      nbytes: times the range of calls of these bytes only, by such calls; None: all ranges.

    Raises:
      JaxcommError: the plan's entries belong to the buckets of a step; ranks are on other hosts; or no time is left for
        the first range.
    """
    if made.step:
        raise JaxcommError(
            "--try times calls one by one; this profile has the gradients of a step, which are planned together.\n"
            "  Cure: leave out --try: the run compares the plan with the default schedule by itself."
        )
    if profile.network and not is_job():
        raise JaxcommError(
            "--try runs schedules where the plan is for; this profile has several hosts, and here is one process.\n"
            "  Cure: jaxcomm launch, or jaxcomm testbed run, before `jaxcomm plan --try`; or leave out --try."
        )
    if (timed := made.assumptions.timed) and timed.executor == "xla":
        raise JaxcommError(
            "--try runs schedules on the core; this profile has times of XLA's own collectives, which run this plan.\n"
            "  Cure: leave out --try; `jaxcomm profile --executor xla` has timed whole schedules already."
        )
    communicator.set_trial(False)
    start = time.monotonic()
    sizes = {entry.min_bytes: max(1, entry.predicted.reference_bytes) for entry in made.collectives}
    if nbytes is not None:
        sizes = {made.collectives[made.index_for(nbytes)].min_bytes: nbytes}
    todo = [
        entry
        for entry in made.collectives
        if entry.selector is None and _is_cores(entry) and sizes.get(entry.min_bytes, inf) <= MOST_BYTES
    ]
    delays = _delays(profile, _LATE_PART * limit_s / max(1, len(todo)))
    hosts = members.connected().hosts if is_job() else (0,) * made.ranks
    template = made.template or Rotation.model_validate(schedules.template(made.ranks).to_json())
    with_template = made.model_copy(update={"template": template})
    found: dict[int, Entry] = {}
    for number, entry in enumerate(todo):
        now = time.monotonic()
        if job.agree(now - start) >= limit_s:
            break
        until = now + (start + limit_s - now) / (len(todo) - number)
        found[entry.min_bytes] = _fastest(with_template, entry, sizes[entry.min_bytes], delays, hosts, until)
        each_range()
    if todo and not found:
        raise JaxcommError(
            f"--try had no time left for a byte range after {limit_s:.3g} s.\n  Cure: a larger --try-limit."
        )
    entries = tuple(found.get(entry.min_bytes, entry) for entry in made.collectives)
    plan = made.model_copy(update={"collectives": entries, "template": template if uses_template(entries) else None})
    checked = Plan.model_validate(plan.model_dump(exclude={"hash"}))
    return Tried(checked, time.monotonic() - start, len(found), len(entries) - len(found), delays)


def _delays(profile: Profile, a_range_s: float) -> dict[int, float]:
    """By late rank, its lateness where it was late; less if two turns of all candidates would exceed `a_range_s`."""
    late = straggler.late_ranks(profile) if profile.arrivals else ()
    if not late:
        return {}
    arrivals = np.array(profile.arrivals)
    on_time = np.max(np.delete(arrivals, late, axis=1), axis=1)
    leads = {rank: arrivals[:, rank] - on_time for rank in late}
    delays = {rank: float(np.median(lead[lead > 0])) for rank, lead in leads.items() if (lead > 0).any()}
    if not delays:
        return {}
    calls = 2 * (CANDIDATES + 1) * (bench_late.CALLS + 1)
    share = min(1.0, a_range_s / calls / max(delays.values()))
    return {rank: share * seconds for rank, seconds in delays.items()}


def _fastest(
    made: Plan, entry: Entry, nbytes: int, delays: Mapping[int, float], hosts: tuple[int, ...], until: float
) -> Entry:
    """The entry with the fastest of its candidates, or the default schedule if none gains on it."""
    usual = default_schedule(nbytes, hosts)
    default = Plain(kind="ring" if usual == "ring" else "direct")
    candidates = [spec for spec in _candidates(entry) if spec != default]
    plans: dict[str, Plan | None] = {_DEFAULT: None}
    plans |= {str(number): _only(made, entry, spec) for number, spec in enumerate(candidates)}
    timed = {name: each.seconds for name, each in bench_late.time_plans(plans, delays, nbytes, _turns(until)).items()}
    seconds = {name: significant(job.greatest(statistics.median(each))) for name, each in timed.items()}
    best = min(seconds, key=lambda name: seconds[name])
    gains = seconds[best] < (1 - _LEAST_GAIN) * seconds[_DEFAULT]
    are_shorter = job.greatest(gain.of(timed[_DEFAULT], timed[best]).are_shorter)
    are_longer = job.greatest(gain.of(timed[best], timed[_DEFAULT]).are_shorter)
    if not (gains and are_shorter) or are_longer:
        best = _DEFAULT
    rows = tuple(Candidate(schedule=spec, seconds=seconds[str(number)]) for number, spec in enumerate(candidates))
    measured = MeasuredTimes(bytes=nbytes, seconds=seconds[best], default=seconds[_DEFAULT], candidates=rows)
    return _with(entry, default if best == _DEFAULT else candidates[int(best)], measured)


def _with(entry: Entry, chosen: Spec, measured: MeasuredTimes) -> Entry:
    """The entry with another schedule, its prediction and the verdicts on those that it was measured beside."""
    slower = {each.schedule for each in measured.candidates} - {chosen}

    def judged(offer: Alternative) -> Alternative:
        is_tried = _is_cores(offer) and offer.schedule in {chosen, entry.schedule, *slower}
        if offer.verdict == "ideal_delay" or not is_tried:
            return offer
        return offer.model_copy(update={"verdict": "chosen" if offer.schedule == chosen else "slower_here"})

    offers = tuple(map(judged, entry.alternatives))
    seconds = next((offer.seconds for offer in offers if offer.verdict == "chosen"), entry.predicted.seconds)
    predicted = entry.predicted.model_copy(update={"seconds": seconds})
    return entry.model_copy(
        update={"schedule": chosen, "predicted": predicted, "alternatives": offers, "measured": measured}
    )


def _candidates(entry: Entry) -> list[Spec]:
    """Those with the least predicted times."""
    offers = [offer for offer in entry.alternatives if offer.verdict != "ideal_delay" and _is_cores(offer)]
    ordered = [entry.schedule, *(offer.schedule for offer in sorted(offers, key=lambda offer: offer.seconds))]
    found: list[Spec] = [spec for spec in dict.fromkeys(ordered) if not isinstance(spec, Nccl)]
    return found[:CANDIDATES]


def _is_cores(runs: Entry | Alternative) -> bool:
    """Whether the core runs a schedule on CPUs, which is what is tried."""
    return runs.executor is None and runs.schedule.kind != "lax"


def _only(made: Plan, entry: Entry, spec: Spec) -> Plan:
    """The plan with one schedule for every size."""
    only = entry.model_copy(update={"min_bytes": 0, "max_bytes": None, "schedule": spec})
    fields = {"collectives": (only,), "halves": None, "rails": None, "lost_rails": (), "transport": None}
    return Plan.model_validate({**made.model_dump(exclude={"hash"}), **fields})


def _turns(until: float) -> Iterator[None]:
    """Two at least, and others while there is time; alike in all processes."""
    for number in range(_ROUNDS):
        if number >= 2 and job.agree(time.monotonic() >= until):
            return
        yield
