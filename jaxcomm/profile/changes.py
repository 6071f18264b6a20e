"""Profiles with one change, to ask the planner what-if questions.

Every change gives a new profile, which is checked like a profile from a file. Its provenance names the change. Its
arrivals are shifted so that the first rank of each step still arrives at 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxcomm.errors import ProfileError
from jaxcomm.files import mistake
from jaxcomm.profile.files import validate
from jaxcomm.profile.fit import fit, rounds_and_share
from jaxcomm.profile.lateness import find_straggler
from jaxcomm.profile.racks_and_rails import Rail, Sample
from jaxcomm.profile.schema import Bucket, ExecutorName, Link, Profile
from jaxcomm.profile.timed_schedules import TriedSchedule
from jaxcomm.profile.tolerance import Layer

# Minimum size, in bytes, of a job's sum that enters a rail's table. Smaller sums may run in one round, whose time from
# the last arrival to the end does not include the transfer.
_TWO_ROUNDS = 1 << 16
# The advice in error texts if a profile has no rails, and if it has no racks.
_GIVES = {
    "rail": "import what each was timed to take: `jaxcomm profile import FILE --rail NAME=TRANSPORT --into PROFILE`",
    "rack": "say which ranks are in which: `--racks 4+4`, or `racks` in the profile",
}


def without_straggler(profile: Profile) -> Profile:
    """The profile as if its straggler arrived, in every step, no later than the median of the other ranks.

    The next-latest rank stays as late as before, and may become the straggler.

    Raises:
      ProfileError: the profile has no arrivals, or no late rank.
    """
    late = find_straggler(profile)
    if not late.is_late:
        problem = "nobody is late in it; there is no straggler to leave out"
        raise ProfileError(mistake(profile.provenance.source, problem, "ask for another change"))
    arrivals = np.array(profile.arrivals)
    usual = np.median(np.delete(arrivals, late.rank, axis=1), axis=1)
    arrivals[:, late.rank] = np.minimum(arrivals[:, late.rank], usual)
    return _changed(profile, f"without its straggler, rank {late.rank}", arrivals=arrivals.tolist())


def with_late_rank(profile: Profile, rank: int, seconds: float) -> Profile:
    """The profile as if one rank arrived later than it did, in every step.

    Args:
      profile: any profile; without arrivals, all ranks are assumed to arrive together.
      rank: the rank, in [0, ranks).
      seconds: the time by which the rank arrives later, at least 0.

    Raises:
      ProfileError: a rank or a time out of range.
    """
    _check_rank(profile, rank, "be late")
    if not 0 <= seconds < math.inf:
        problem = f"rank {rank} cannot be late by {seconds:g} s"
        raise ProfileError(mistake(profile.provenance.source, problem, "name a time of at least 0"))
    arrivals = np.array(profile.arrivals or [[0.0] * profile.ranks])
    arrivals[:, rank] += seconds
    arrivals -= arrivals.min(axis=1, keepdims=True)
    return _changed(profile, f"rank {rank} later by {seconds:g} s", arrivals=arrivals.tolist())


def with_executor(profile: Profile, name: ExecutorName, timed: Link, ranks: int) -> Profile:
    """The profile with the measured times of an executor, or of NCCL's own allreduce, on CUDA devices.

    Args:
      profile: the profile of the cluster on which the executor was timed.
      name: "fused" or "messages", which run our schedules, or "nccl".
      timed: the link that was fitted to the timed allreduces.
      ranks: the number of ranks of those allreduces.

    Raises:
      ProfileError: `ranks` is not the profile's number of ranks, or `timed` has no samples or a collective other than
        all_reduce.
    """
    _check_timed(profile, name, ranks)
    executors = {key: link.model_dump() for key, link in profile.executors.items()} | {name: timed.model_dump()}
    return _changed(profile, f"with {name} as timed", executors=executors)


def with_rail(profile: Profile, name: str, transport: str, timed: Profile) -> Profile:
    """The profile with one more rail. A rail of the same name is replaced.

    Args:
      profile: the profile of the cluster that has the rail.
      name: the rail's name, such as the name of its interface.
      transport: the rail's protocol, such as "tcp".
      timed: a profile with allreduces that were timed on this rail alone. If `timed` has a rail `name`, the latencies
        of this rail are used. Otherwise, if the samples of `timed.link` are allreduces, these samples are used.
        Otherwise the sums that a job timed with a default schedule are used.

    Raises:
      ProfileError: `timed` has another number of ranks than `profile`, or no allreduces.
    """
    _check_timed(profile, name, timed.ranks)
    known = next((rail for rail in timed.rails if rail.name == name), None)
    latency = known.latency if known else _allreduces(timed)
    if not latency:
        problem = "holds no allreduces, from which a rail's table is made"
        cure = f"`JAXCOMM_RAILS={name} jaxcomm profile` in a job times them, or all_reduce_perf of nccl-tests"
        raise ProfileError(mistake(timed.provenance.source, problem, cure))
    rail = (known or Rail(name=name, transport=transport, latency=latency)).model_copy(update={"transport": transport})
    others = [each.model_dump() for each in profile.rails if each.name != name]
    return _changed(profile, f"with rail {name} as timed", rails=[*others, rail.model_dump()], rail_shares={})


def with_trials(profile: Profile, tried: Sequence[TriedSchedule], whose: str) -> Profile:
    """The profile with a run's trials. They replace the profile's own trials of the same schedules and sizes.

    Args:
      profile: the profile of the run's cluster.
      tried: the schedules that the run has tried.
      whose: the run's name, for the provenance.

    Raises:
      ProfileError: the run has completed no trial.
    """
    if not tried:
        problem = f"has no trial of {profile.ranks} ranks that has ended: no call site followed a plan for long enough"
        raise ProfileError(mistake(whose, problem, "run under a plan for a few hundred steps, then save it"))
    new = {(each.name, each.bytes) for each in tried}
    others = [each for each in profile.trials if (each.name, each.bytes) not in new]
    return _changed(profile, f"with the trials of {whose}", trials=[each.model_dump() for each in (*others, *tried)])


def with_gradients(profile: Profile, buckets: Sequence[Bucket], whose: str) -> Profile:
    """The profile with `buckets` as its gradient buckets. Its provenance names `whose` as the buckets' origin."""
    return _changed(profile, f"gradients of {whose}", buckets=[bucket.model_dump() for bucket in buckets])


def at_rate(profile: Profile, rate: float) -> Profile:
    """The profile as if the bytes per second of every link and rail were multiplied by `rate`. Latencies stay.

    The link's samples and `collective` are left out. They were measured on the unchanged links, so they would
    contradict the new rates.

    Args:
      profile: any profile.
      rate: the factor, above 0; 0.25 stands for a quarter of the rate.

    Raises:
      ProfileError: the rate is not above 0, or too small for a link that is already slow.
    """
    _check_rate(profile, rate)
    link = profile.link
    changed = link.model_dump(include={"alpha_s", "alpha_assumed", "op"})
    changed["beta_s_per_byte"] = link.beta_s_per_byte / rate
    source = f"{link.source}; then {rate:g} times the rate"[:4096]
    executors = {name: _slowed_executor(each, profile.ranks, rate) for name, each in profile.executors.items()}
    rails = [_slowed(rail, rate) for rail in profile.rails]
    fields = {"link": changed | {"source": source}, "rails": rails, "executors": executors}
    return _changed(profile, f"links at {rate:g} times their rate", **fields, collective=None)


def without_rail(profile: Profile, name: str) -> Profile:
    """The profile as if a rail were missing.

    Raises:
      ProfileError: the profile has no such rail, or has no other rail.
    """
    _check_name(profile, "rail", name, [rail.name for rail in profile.rails])
    left = [rail.model_dump() for rail in profile.rails if rail.name != name]
    if not left:
        problem = f"{name!r} is the only rail; without it the ranks are not connected"
        raise ProfileError(mistake(profile.provenance.source, problem, "ask for another change"))
    return _changed(profile, f"without rail {name}", rails=left, rail_shares={})


def rail_at_rate(profile: Profile, name: str, rate: float) -> Profile:
    """The profile as if one rail's bytes per second were multiplied by `rate`. The rail's latency stays.

    Raises:
      ProfileError: no such rail, or a rate that is not above 0 or is too small for a rail that is already slow.
    """
    _check_name(profile, "rail", name, [rail.name for rail in profile.rails])
    _check_rate(profile, rate)
    rails = [_slowed(rail, rate) if rail.name == name else rail.model_dump() for rail in profile.rails]
    return _changed(profile, f"rail {name} at {rate:g} times its rate", rails=rails, rail_shares={})


def uplink_at_rate(profile: Profile, name: str, rate: float) -> Profile:
    """The profile as if the bytes per second of one rack's uplink were multiplied by `rate`.

    Raises:
      ProfileError: no such rack, or a rate that is not above 0 or makes the uplink faster than links within the rack.
    """
    _check_name(profile, "rack", name, [rack.name for rack in profile.racks])
    _check_rate(profile, rate)
    racks = [
        rack.model_dump() | {"uplink": rack.uplink / (rate if rack.name == name else 1.0)} for rack in profile.racks
    ]
    return _changed(profile, f"the uplink of rack {name} at {rate:g} times its rate", racks=racks)


def nic_at_rate(profile: Profile, rank: int, rate: float) -> Profile:
    """The profile as if the bytes per second of one rank's NIC were multiplied by `rate`.

    Raises:
      ProfileError: a rank out of range, or a rate that is not above 0 or makes the NIC faster than `link`.
    """
    _check_rank(profile, rank, "have another NIC")
    _check_rate(profile, rate)
    nics = list(profile.nics) or [1.0] * profile.ranks
    nics[rank] /= rate
    return _changed(profile, f"the NIC of rank {rank} at {rate:g} times its rate", nics=nics)


def with_layers(profile: Profile, layers: Sequence[Layer]) -> Profile:
    """The profile as if its ranks trained a model with these layers. The rest of `tolerance` stays.

    Args:
      profile: any profile.
      layers: the layers in forward order, as `jaxcomm.train.layers` finds them.

    Raises:
      ProfileError: no layers, or two layers with the same name.
    """
    tolerance = profile.tolerance.model_dump() if profile.tolerance else {}
    tolerance["layers"] = [layer.model_dump() for layer in layers]
    return _changed(profile, f"with {len(layers)} layers", tolerance=tolerance)


def _slowed(rail: Rail, rate: float) -> dict[str, Any]:
    """The rail at another rate: the part of each sample's time beyond the fitted latency is divided by `rate`."""
    document = rail.model_dump()
    for holder in (document, *document["virtual"]):
        samples = [Sample(**sample) for sample in holder["latency"]]
        latency = fit(samples, "send_recv", 2, f"rail {rail.name!r}").alpha_s
        holder["latency"] = [sample.model_dump() for sample in _slowed_samples(samples, latency, rate)]
    for rated in [document, *document["cores"]]:
        if rated["bytes_per_s"] is not None:
            rated["bytes_per_s"] *= rate
    return document


def _slowed_executor(link: Link, ranks: int, rate: float) -> dict[str, Any]:
    """The executor's link at another rate: the part of each sample's time beyond the latency is divided by `rate`."""
    rounds, _ = rounds_and_share(link.op, ranks, link.schedule)
    samples = _slowed_samples(link.samples, rounds * link.alpha_s, rate)
    return fit(samples, link.op, ranks, f"{link.source}; then {rate:g} times the rate", link.schedule).model_dump()


def _slowed_samples(samples: Sequence[Sample], latency: float, rate: float) -> list[Sample]:
    fixed = [min(latency, sample.seconds) for sample in samples]
    slowed = [least + (sample.seconds - least) / rate for sample, least in zip(samples, fixed, strict=True)]
    return [Sample(bytes=sample.bytes, seconds=seconds) for sample, seconds in zip(samples, slowed, strict=True)]


def _allreduces(timed: Profile) -> list[Sample]:
    """The timed allreduces in order of size, from the link or from a job's timed sums; [] if `timed` has neither."""
    if timed.link.op == "all_reduce":
        return sorted(timed.link.samples, key=lambda sample: sample.bytes)
    found = timed.timed_schedules
    if found is None or found.executor != "messages":
        return []
    by_size: dict[int, float] = {}  # seconds of the faster default schedule
    for each in found.by_executor()["messages"].schedules:
        for sample in each.samples if each.kind in ("direct", "ring") else ():
            by_size[sample.bytes] = min(sample.together_s, by_size.get(sample.bytes, math.inf))
    return [Sample(bytes=size, seconds=by_size[size]) for size in sorted(by_size) if size >= _TWO_ROUNDS]


def _check_timed(profile: Profile, name: str, ranks: int) -> None:
    if ranks != profile.ranks:
        problem = f"has {profile.ranks} ranks; {name} was timed on {ranks}"
        raise ProfileError(mistake(profile.provenance.source, problem, f"time it on {profile.ranks} ranks"))


def _check_rank(profile: Profile, rank: int, do: str) -> None:
    if not 0 <= rank < profile.ranks:
        problem = f"rank {rank} cannot {do}: the ranks are 0 to {profile.ranks - 1}"
        raise ProfileError(mistake(profile.provenance.source, problem, "name one of them"))


def _check_name(profile: Profile, kind: str, name: str, names: list[str]) -> None:
    if name not in names:
        problem = f"has no {kind} {name!r}; its {kind}s are: {', '.join(names) or 'none'}"
        cure = "name one of them" if names else _GIVES[kind]
        raise ProfileError(mistake(profile.provenance.source, problem, cure))


def _check_rate(profile: Profile, rate: float) -> None:
    if not rate > 0:
        problem = f"the rate is {rate:g}"
        raise ProfileError(mistake(profile.provenance.source, problem, "name one above 0, such as 0.25"))


def _changed(profile: Profile, how: str, **fields: Any) -> Profile:
    document = profile.model_dump() | fields
    if {"link", "rails", "racks", "nics"} & {*fields}:
        document |= {"timed_schedules": None, "trials": []}  # they were timed on the unchanged links
    source = profile.provenance.source
    document["provenance"]["source"] = f"{source}, {how}"[:4096]
    return validate(document, source)
