"""A profile with one thing changed, to ask the planner what would be if.

Every change gives a new profile, checked like one from a file, whose provenance says what was changed in it. Arrivals
count from the first rank of each step, whichever that is after the change.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jaxcomm.errors import ProfileError
from jaxcomm.files import mistake
from jaxcomm.profile.files import validate
from jaxcomm.profile.lateness import straggler
from jaxcomm.profile.schema import Profile


def without_straggler(profile: Profile) -> Profile:
    """The profile as if its straggler were like the others: in no step later than the median of the other ranks.

    Whoever was next is as late as before and may be the straggler now.

    Raises:
      ProfileError: the profile has no arrivals, or nobody is late in it.
    """
    late = straggler(profile)
    if not late.late_steps:
        what = "no rank is ever later than all others; there is no straggler to leave out"
        raise ProfileError(mistake(profile.provenance.source, what, "ask for another change"))
    arrivals = np.array(profile.arrivals)
    usual = np.median(np.delete(arrivals, late.rank, axis=1), axis=1)
    arrivals[:, late.rank] = np.minimum(arrivals[:, late.rank], usual)
    return _changed(profile, f"without its straggler, rank {late.rank}", arrivals=arrivals.tolist())


def with_late_rank(profile: Profile, rank: int, seconds: float) -> Profile:
    """The profile as if one rank came later by so many seconds than it did, in every step.

    Args:
      profile: with or without arrivals; without, all ranks are taken to arrive together.
      rank: the rank, in [0, ranks).
      seconds: how much later it comes, at least 0.

    Raises:
      ProfileError: a rank out of range, or a time that cannot be.
    """
    if not 0 <= rank < profile.ranks:
        what = f"rank {rank} cannot be late: the ranks are 0 to {profile.ranks - 1}"
        raise ProfileError(mistake(profile.provenance.source, what, "name one of them"))
    if not 0 <= seconds < math.inf:
        what = f"rank {rank} cannot be late by {seconds:g} s"
        raise ProfileError(mistake(profile.provenance.source, what, "name a time of at least 0"))
    arrivals = np.array(profile.arrivals or [[0.0] * profile.ranks])
    arrivals[:, rank] += seconds
    arrivals -= arrivals.min(axis=1, keepdims=True)
    return _changed(profile, f"rank {rank} later by {seconds:g} s", arrivals=arrivals.tolist())


def at_rate(profile: Profile, rate: float) -> Profile:
    """The profile as if every link carried `rate` times as many bytes per second; latencies stay.

    What was timed on the links as they are, samples and collective, is left out: it would contradict the new ones.

    Args:
      profile: any profile.
      rate: above 0; a quarter rate is 0.25.

    Raises:
      ProfileError: the rate is not above 0, or too small for a link that is already slow.
    """
    if not rate > 0:
        raise ProfileError(
            f"{profile.provenance.source}: the rate is {rate:g}.\n  Cure: name one above 0, such as 0.25."
        )
    link = profile.link
    changed = {"alpha_s": link.alpha_s, "beta_s_per_byte": link.beta_s_per_byte / rate, "op": link.op}
    source = f"{link.source}; then {rate:g} times the rate"[:4096]
    return _changed(profile, f"links at {rate:g} times their rate", link=changed | {"source": source}, collective=None)


def _changed(profile: Profile, how: str, **fields: Any) -> Profile:
    document = profile.model_dump() | fields
    source = profile.provenance.source
    document["provenance"]["source"] = f"{source}, {how}"[:4096]
    return validate(document, source)
