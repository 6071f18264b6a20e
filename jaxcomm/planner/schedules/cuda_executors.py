"""The choice of an executor for our schedules on CUDA devices, and the times of NCCL's own allreduce there."""

from __future__ import annotations

import itertools
from operator import attrgetter
from typing import get_args

import numpy as np

from jaxcomm import schedules
from jaxcomm.plan.executors import Executors, OwnName, Timed
from jaxcomm.profile import Profile, Sample
from jaxcomm.profile.fit import without_noise


def choose_executor(profile: Profile) -> tuple[Profile, Executors | None]:
    """The profile with the link costs of the executor that runs our schedules, and the plan's record of executors.

    The executor whose ring is faster at the usual call size is chosen. "fused", one kernel over memory that all ranks
    can read, starts its rounds sooner, but "messages", which sends and receives, may move large buffers faster. If no
    executor was timed, the profile is unchanged.
    """
    timed = profile.executors
    own: list[OwnName] = [name for name in get_args(OwnName) if name in timed]
    nccl = _table(timed["nccl"].samples) if "nccl" in timed else ()
    if not timed:
        return profile, None
    if not own:
        return profile, Executors(nccl=nccl)
    nbytes = _usual_bytes(profile)

    def ring_seconds(name: OwnName) -> float:
        link = timed[name]
        return schedules.ring(profile.ranks).seconds(nbytes, link.alpha_s, link.beta_s_per_byte)

    best = min(own, key=ring_seconds)
    return profile.model_copy(update={"link": timed[best]}), Executors(own=best, nccl=nccl)


def _usual_bytes(profile: Profile) -> int:
    """The usual size of a call: the largest bucket, else the collective's size, else the largest timed size."""
    if profile.buckets:
        return max(bucket.bytes for bucket in profile.buckets)
    if profile.collective:
        return profile.collective.bytes
    return max(sample.bytes for link in profile.executors.values() for sample in link.samples)


def _table(samples: list[Sample]) -> tuple[Timed, ...]:
    """One time per size: the median of the size's samples or, if lower, the least median of the larger sizes."""
    by_size = itertools.groupby(sorted(samples, key=attrgetter("bytes")), key=attrgetter("bytes"))
    medians = {size: float(np.median([sample.seconds for sample in alike])) for size, alike in by_size}
    seconds = without_noise([*medians.values()]).tolist()
    return tuple(Timed(bytes=size, seconds=time) for size, time in zip(medians, seconds, strict=True))
