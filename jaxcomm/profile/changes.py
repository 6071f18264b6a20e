"""A profile with one thing changed, to ask the planner what would be if.

Every change gives a new profile, checked like one from a file, whose provenance says what was changed in it. Arrivals
count from the first rank of each step after the change.
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
from jaxcomm.profile.racks_and_rails import Rail, Sample
from jaxcomm.profile.schema import Bucket, ExecutorName, Link, Profile
from jaxcomm.profile.straggler import find_straggler
from jaxcomm.profile.tolerance import Layer

# Additions to a profile.
_GIVES = {
    "rail": "import what each was timed to take: `jaxcomm profile import FILE --rail NAME=TRANSPORT --into PROFILE`",
    "rack": "say which ranks are in which: `--racks 4+4`, or `racks` in the profile",
}


def without_straggler(profile: Profile) -> Profile:
    """The profile as if its straggler were like the others: in no step later than the median of the other ranks.

    The next rank is as late as before and may be the straggler now.

    Raises:
      ProfileError: the profile has no arrivals, or nobody is late in it.
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
    """The profile as if one rank came later than it did, in every step.

    Args:
      profile: with or without arrivals; without, all ranks are taken to arrive together.
      rank: the rank, in [0, ranks).
      seconds: the time by which it comes later, at least 0.

    Raises:
      ProfileError: a rank out of range, or a time that cannot be.
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
    """The profile with what an executor, or NCCL's own allreduce, was timed to take on CUDA devices.

    Args:
      profile: of the cluster on which it was timed.
      name: "fused" or "messages", which run our schedules, or "nccl".
      timed: the fitted allreduces.
      ranks: of those allreduces.

    Raises:
      ProfileError: other ranks than the profile's, another collective than all_reduce, or no samples.
    """
    _check_timed(profile, name, ranks)
    executors = {key: link.model_dump() for key, link in profile.executors.items()} | {name: timed.model_dump()}
    return _changed(profile, f"with {name} as timed", executors=executors)


def with_rail(profile: Profile, name: str, transport: str, timed: Link, ranks: int) -> Profile:
    """The profile with a rail, one more or in place of its own of that name.

    Args:
      profile: of the cluster that has the rail.
      name: of the rail, such as the interface's.
      transport: its protocol, such as "tcp".
      timed: the fitted allreduces on this rail alone.
      ranks: of those allreduces.

    Raises:
      ProfileError: other ranks than the profile's, or another collective than all_reduce.
    """
    _check_timed(profile, name, ranks)
    if timed.op != "all_reduce":
        problem = f"rail {name!r} was timed by {timed.op}"
        raise ProfileError(mistake(profile.provenance.source, problem, "time all_reduce on it"))
    rail = Rail(name=name, transport=transport, latency=sorted(timed.samples, key=lambda sample: sample.bytes))
    others = [each.model_dump() for each in profile.rails if each.name != name]
    return _changed(profile, f"with rail {name} as timed", rails=[*others, rail.model_dump()], rail_shares={})


def with_gradients(profile: Profile, buckets: Sequence[Bucket], whose: str) -> Profile:
    """The profile with these gradients of a step in place of its own; `whose` they are is added to its provenance."""
    return _changed(profile, f"gradients of {whose}", buckets=[bucket.model_dump() for bucket in buckets])


def at_rate(profile: Profile, rate: float) -> Profile:
    """The profile as if every link and rail carried `rate` times as many bytes per second; latencies stay.

    What was timed on the links as they are, samples and collective, is left out: it would contradict the new ones.

    Args:
      profile: any profile.
      rate: above 0; a quarter rate is 0.25.

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
    """The profile as if a rail were gone.

    Raises:
      ProfileError: it has no such rail, or no other.
    """
    _check_name(profile, "rail", name, [rail.name for rail in profile.rails])
    left = [rail.model_dump() for rail in profile.rails if rail.name != name]
    if not left:
        problem = f"{name!r} is the only rail; without it the ranks are not connected"
        raise ProfileError(mistake(profile.provenance.source, problem, "ask for another change"))
    return _changed(profile, f"without rail {name}", rails=left, rail_shares={})


def rail_at_rate(profile: Profile, name: str, rate: float) -> Profile:
    """The profile as if one rail carried `rate` times as many bytes per second; its latency stays.

    Raises:
      ProfileError: no such rail, or a rate that is not above 0, or too small for a rail that is already slow.
    """
    _check_name(profile, "rail", name, [rail.name for rail in profile.rails])
    _check_rate(profile, rate)
    rails = [_slowed(rail, rate) if rail.name == name else rail.model_dump() for rail in profile.rails]
    return _changed(profile, f"rail {name} at {rate:g} times its rate", rails=rails, rail_shares={})


def uplink_at_rate(profile: Profile, name: str, rate: float) -> Profile:
    """The profile as if one rack's uplink carried `rate` times as many bytes per second.

    Raises:
      ProfileError: no such rack, or a rate that is not above 0, or makes the uplink faster than links within the rack.
    """
    _check_name(profile, "rack", name, [rack.name for rack in profile.racks])
    _check_rate(profile, rate)
    racks = [
        rack.model_dump() | {"uplink": rack.uplink / (rate if rack.name == name else 1.0)} for rack in profile.racks
    ]
    return _changed(profile, f"the uplink of rack {name} at {rate:g} times its rate", racks=racks)


def nic_at_rate(profile: Profile, rank: int, rate: float) -> Profile:
    """The profile as if one rank's NIC carried `rate` times as many bytes per second.

    Raises:
      ProfileError: a rank out of range, or a rate that is not above 0, or makes the NIC faster than `link`.
    """
    _check_rank(profile, rank, "have another NIC")
    _check_rate(profile, rate)
    nics = list(profile.nics) or [1.0] * profile.ranks
    nics[rank] /= rate
    return _changed(profile, f"the NIC of rank {rank} at {rate:g} times its rate", nics=nics)


def with_layers(profile: Profile, layers: Sequence[Layer]) -> Profile:
    """The profile of the same ranks that train a model of these layers; the loss that they bear together stays.

    Args:
      profile: any profile.
      layers: in forward order, as `jaxcomm.train.layers` finds them.

    Raises:
      ProfileError: no layers, or two of one name.
    """
    tolerance = profile.tolerance.model_dump() if profile.tolerance else {}
    tolerance["layers"] = [layer.model_dump() for layer in layers]
    return _changed(profile, f"with {len(layers)} layers", tolerance=tolerance)


def _slowed(rail: Rail, rate: float) -> dict[str, Any]:
    """A rail on which all but the fitted latency of every sample takes 1 / rate times as long."""
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
    """The same for what an executor was timed to take."""
    rounds, _ = rounds_and_share(link.op, ranks, link.schedule)
    samples = _slowed_samples(link.samples, rounds * link.alpha_s, rate)
    return fit(samples, link.op, ranks, f"{link.source}; then {rate:g} times the rate", link.schedule).model_dump()


def _slowed_samples(samples: Sequence[Sample], latency: float, rate: float) -> list[Sample]:
    fixed = [min(latency, sample.seconds) for sample in samples]
    slowed = [least + (sample.seconds - least) / rate for sample, least in zip(samples, fixed, strict=True)]
    return [Sample(bytes=sample.bytes, seconds=seconds) for sample, seconds in zip(samples, slowed, strict=True)]


def _check_timed(profile: Profile, name: str, ranks: int) -> None:
    if ranks != profile.ranks:
        problem = f"is of {profile.ranks} ranks; {name} was timed on {ranks}"
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
        document["timed_schedules"] = None  # they were timed on the links as they were
    source = profile.provenance.source
    document["provenance"]["source"] = f"{source}, {how}"[:4096]
    return validate(document, source)
