"""`jaxcomm plan --try`: times each byte range's best candidates on this machine. The plan gets the fastest one.

This module imports JAX: import it after `job.use_devices`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Final, NamedTuple

import numpy as np

from jaxcomm import ffi, schedules
from jaxcomm.cli import bench_late
from jaxcomm.cli.common import job
from jaxcomm.collectives import active_plan
from jaxcomm.distributed.connect import members
from jaxcomm.distributed.launch.job import is_job
from jaxcomm.errors import JaxcommError
from jaxcomm.plan import Plan
from jaxcomm.plan.step import Planned, Step
from jaxcomm.plan.values import Alternative, Candidate, Entry, MeasuredTimes, Nccl, Plain, Rotation, Spec
from jaxcomm.planner.make_plan import uses_template
from jaxcomm.planner.rounding import significant
from jaxcomm.profile import Profile, lateness
from jaxcomm.schedules.default_schedules import default_schedule

CANDIDATES: Final = 3  # maximum number of schedules that are timed in a byte range, besides the default schedule
MOST_BYTES: Final = 64 << 20  # largest buffer that is timed
_ROUNDS: Final = 10  # maximum number of turns in which the schedules of a byte range are timed
_LEAST_GAIN: Final = 0.02  # a candidate is chosen only if it saves more than this share of the default schedule's time
_LATE_PART: Final = 0.5  # share of the time limit that the late ranks' delays may take
_DEFAULT: Final = "default"


class Tried(NamedTuple):
    """The outcome of --try.

    Attributes:
      plan: the plan with the fastest schedules.
      seconds: duration of --try.
      ranges: number of byte ranges that were timed.
      left: number of ranges that were not timed. Possible reasons: no time was left, the core does not run the range's
        schedule, or the range begins beyond MOST_BYTES, has a selector or holds only a step's smaller buckets.
      delays: each late rank's delay in seconds.
    """

    plan: Plan
    seconds: float
    ranges: int
    left: int
    delays: Mapping[int, float]


def tried(
    made: Plan, profile: Profile, limit_s: float, each_range: Callable[[], object], nbytes: int | None = None
) -> Tried:
    """Returns the plan with the schedules that were fastest here. All processes of a job must call this.

    Args:
      made: the plan for this profile. Entries that the core does not run stay unchanged.
      profile: the profile of the ranks; it names the late ranks.
      limit_s: time limit in seconds. A range whose timing begins before the limit still gets at least two turns.
      each_range: called after each byte range.
      nbytes: if given, only the range that contains this size is timed, with calls of this size.

    Raises:
      JaxcommError: the profile has several hosts but this is one process, or XLA's collectives run the plan, or no time
        is left for the first range.
    """
    if profile.network and not is_job():
        raise JaxcommError(
            "--try runs schedules on the plan's own hosts; this profile has several hosts, but this is one process.\n"
            "  Cure: jaxcomm launch, or jaxcomm testbed run, before `jaxcomm plan --try`; or leave out --try."
        )
    if (timed := made.assumptions.timed) and timed.executor == "xla":
        raise JaxcommError(
            "--try runs schedules on the core; this profile has times of XLA's own collectives, which run this plan.\n"
            "  Cure: leave out --try; `jaxcomm profile --executor xla` has timed whole schedules already."
        )
    active_plan.set_trial(False)
    start = time.monotonic()
    wanted = {entry.min_bytes: _size_of(entry, profile) for entry in made.collectives}
    if made.step and nbytes is None:  # buckets are planned together, so only the largest is timed
        nbytes = max(bucket.bytes for bucket in made.step.planned)
    if nbytes is not None:
        entry = made.collectives[made.index_for(nbytes)]
        wanted = {entry.min_bytes: max(entry.min_bytes, min(nbytes, MOST_BYTES))}
    sizes = {low: size for low, size in wanted.items() if size <= MOST_BYTES}
    todo = [
        entry for entry in made.collectives if entry.selector is None and _is_cores(entry) and entry.min_bytes in sizes
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
    changed = {"collectives": entries, "template": template if uses_template(entries) else None}
    plan = made.model_copy(update={**changed, "step": _step(made, found)})
    checked = Plan.model_validate(plan.model_dump(exclude={"hash"}))
    return Tried(checked, time.monotonic() - start, len(found), len(entries) - len(found), delays)


def _step(made: Plan, found: Mapping[int, Entry]) -> Step | None:
    """Returns the plan's step. Each bucket in a timed byte range gets the schedule that was fastest there."""
    if made.step is None:
        return None

    def timed(bucket: Planned) -> Planned:
        entry = found.get(made.collectives[made.index_for(bucket.bytes)].min_bytes)
        if entry is None or entry.schedule == bucket.schedule:
            return bucket
        before = bucket.before if "late" in entry.schedule.model_fields_set else None
        return bucket.model_copy(update={"schedule": entry.schedule, "before": before})

    return made.step.model_copy(update={"planned": tuple(map(timed, made.step.planned))})


def _size_of(entry: Entry, profile: Profile) -> int:
    """Size of the calls that time a range: the profile's largest bucket in the range, or the range's reference size.

    The size is limited to MOST_BYTES, but a range that begins beyond MOST_BYTES gets its own smallest size.
    """
    high = inf if entry.max_bytes is None else entry.max_bytes
    known = [each.bytes for each in profile.buckets if entry.min_bytes <= each.bytes <= high]
    return max(1, entry.min_bytes, min(max(known, default=entry.predicted.reference_bytes), MOST_BYTES))


def _delays(profile: Profile, a_range_s: float) -> dict[int, float]:
    """Each late rank's median delay in its late steps.

    Shortens all delays by one factor if two turns of all candidates would otherwise spend more than `a_range_s` in
    delays.
    """
    late = lateness.late_ranks(profile) if profile.arrivals else ()
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
    """The entry with its fastest candidate, or with the default schedule if no candidate is clearly faster."""
    usual = default_schedule(nbytes, hosts)
    default = Plain(kind="ring" if usual == "ring" else "direct")
    candidates = [spec for spec in _candidates(entry) if spec != default]
    plans: dict[str, Plan | None] = {_DEFAULT: None}
    plans |= {str(number): _only(made, entry, spec) for number, spec in enumerate(candidates)}
    timed = {name: each.seconds for name, each in bench_late.time_plans(plans, delays, nbytes, _turns(until)).items()}
    seconds = {name: significant(job.greatest(statistics.median(each))) for name, each in timed.items()}
    best = min(seconds, key=lambda name: seconds[name])
    gains = seconds[best] < (1 - _LEAST_GAIN) * seconds[_DEFAULT]
    compared = ffi.compare(timed[best], timed[_DEFAULT])
    if not (gains and job.greatest(compared.is_shorter)) or job.greatest(compared.is_longer):
        best = _DEFAULT
    rows = tuple(Candidate(schedule=spec, seconds=seconds[str(number)]) for number, spec in enumerate(candidates))
    measured = MeasuredTimes(bytes=nbytes, seconds=seconds[best], default=seconds[_DEFAULT], candidates=rows)
    return _with(entry, default if best == _DEFAULT else candidates[int(best)], measured)


def _with(entry: Entry, chosen: Spec, measured: MeasuredTimes) -> Entry:
    """The entry with the chosen schedule, this schedule's prediction, and verdicts on the timed alternatives."""
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
    """The entry's schedule, and the alternatives with the least predicted times. NCCL is left out."""
    offers = [offer for offer in entry.alternatives if offer.verdict != "ideal_delay" and _is_cores(offer)]
    ordered = [entry.schedule, *(offer.schedule for offer in sorted(offers, key=lambda offer: offer.seconds))]
    found: list[Spec] = [spec for spec in dict.fromkeys(ordered) if not isinstance(spec, Nccl)]
    return found[:CANDIDATES]


def _is_cores(runs: Entry | Alternative) -> bool:
    """Whether the core runs this schedule on CPUs; --try times only such schedules."""
    return runs.executor is None and runs.schedule.kind != "lax"


def _only(made: Plan, entry: Entry, spec: Spec) -> Plan:
    """A copy of `made` in which calls of every size run the schedule `spec`."""
    only = entry.model_copy(update={"min_bytes": 0, "max_bytes": None, "schedule": spec})
    fields = {"collectives": (only,), "step": None, "halves": None, "rails": None, "lost_rails": (), "transport": None}
    return Plan.model_validate({**made.model_dump(exclude={"hash"}), **fields})


def _turns(until: float) -> Iterator[None]:
    """Yields once per turn: at least twice, then while there is time. All processes get the same number of turns."""
    for number in range(_ROUNDS):
        if number >= 2 and job.agree(time.monotonic() >= until):
            return
        yield
