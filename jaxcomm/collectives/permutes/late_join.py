"""Runs the schedule `late_join` as a few whole collectives of XLA, so that most bytes need no permute of ours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcomm.collectives.permutes.rounds import Ranks
from jaxcomm.collectives.permutes.steps import Cuts
from jaxcomm.schedules import Schedule

_WHOLE: dict[Any, Callable[..., Any]] = {lax.add: lax.psum, lax.max: lax.pmax, lax.min: lax.pmin}


def run(schedule: Schedule, flat: Any, cuts: Cuts, ranks: Ranks, combine: Any, platform: str) -> Any:
    """All-reduces the other ranks' buffers, then exchanges this sum for the late rank's buffer, chunk by chunk.

    The bits of this sum depend on the platform, and are the same on all of the other ranks.

    Args:
      schedule: a `late_join`.
      flat, cuts, ranks, combine: as for `rounds.run`.
      platform: the devices' platform. On "cuda", if one group has all devices, the late rank's chunks are broadcast.
        Otherwise they spread by permutes, each of which doubles the number of devices that have a chunk.
    """
    late = schedule.late
    assert late is not None
    order = [late, *(rank for rank in range(schedule.ranks) if rank != late)]
    members = [[group[rank] for rank in order] for group in ranks.groups]
    alone = set(range(ranks.devices)) - {device for group in members for device in group[1:]}
    early_groups = [*(group[1:] for group in members), *([device] for device in sorted(alone))]
    sums = _WHOLE[combine](flat, ranks.axes, axis_index_groups=early_groups)
    is_late = _flags(ranks, [group[0] for group in members])
    is_member = _flags(ranks, [device for group in members for device in group])
    bounds = [*(cuts.starts + cuts.begins).tolist(), flat.size]
    for start, end in itertools.pairwise(bounds):
        own, early = flat[start:end], sums[start:end]
        if platform == "cuda" and len(members) == 1 and len(members[0]) == ranks.devices:
            of_late = lax.pbroadcast(own, ranks.axes, members[0][0])
        else:
            of_late = own
            for step in range(math.ceil(math.log2(schedule.ranks))):
                pairs = [
                    (group[i], group[i + (1 << step)])
                    for group in members
                    for i in range(1 << step)
                    if i + (1 << step) < schedule.ranks
                ]
                came = lax.ppermute(of_late, ranks.axes, pairs)
                of_late = jnp.where(_flags(ranks, [dst for _, dst in pairs]), came, of_late)
        to_late = lax.ppermute(early, ranks.axes, [(group[1], group[0]) for group in members])
        total = combine(jnp.where(is_late, to_late, early), of_late)
        sums = lax.dynamic_update_slice(sums, jnp.where(is_member, total, own), (start,))
        flat, sums = lax.optimization_barrier((flat, sums))
    return sums


def _flags(ranks: Ranks, devices: list[int]) -> Any:
    """Whether this device is among `devices`."""
    flags = np.zeros(ranks.devices, bool)
    flags[devices] = True
    if flags.all():
        return jnp.bool_(True)
    return lax.dynamic_index_in_dim(
        jnp.asarray(flags), lax.axis_index(ranks.axes), keepdims=False, allow_negative_indices=False
    )
