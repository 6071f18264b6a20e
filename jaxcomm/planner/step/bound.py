"""A lower bound on the time of a step, for any bucket boundaries, order of calls and schedules."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxcomm import simulate
from jaxcomm.planner.schedules.setting import Setting
from jaxcomm.profile import Bucket
from jaxcomm.simulate import Delays


def lower_bound(setting: Setting, gradients: Sequence[Bucket]) -> float:
    """Mean seconds after the late rank's last gradient that no bucket boundaries, order or schedules can beat.

    Take the gradients that are ready at a time r or later. Summing them ends no sooner than if all of them were ready
    at r. The bound is the greatest of these end times over all r.
    """
    bounds, nbytes = [], 0
    for gradient in reversed(gradients):
        nbytes += gradient.bytes
        bounds.append(gradient.ready_s - gradients[-1].ready_s + calls_lower_bound(setting, nbytes))
    return max(bounds)


def calls_lower_bound(setting: Setting, nbytes: int) -> float:
    """Mean seconds that no calls with `nbytes` bytes in total can beat, whether they are ours, NCCL's, or a mix.

    Our calls together obey the bound of one call of all their bytes. Several NCCL calls may be faster than one, but no
    NCCL call exceeds the best rate over all sizes. If our calls sum x bytes and NCCL sums the rest at that rate, the
    total time is convex in x. Its minimum lies at an end, or where one more byte costs our calls and NCCL the same
    time.
    """
    own = setting.lower_bound(nbytes)
    if not setting.executors or not setting.executors.nccl:
        return own
    rate = setting.executors.nccl_best_rate(nbytes)
    equal = _equal_cost(setting, 1 / rate, nbytes)
    both = [setting.lower_bound(part) + (nbytes - part) / rate for part in (math.floor(equal), math.ceil(equal))]
    return min(own, max(nbytes / rate, setting.nccl_seconds(1)), *both)


def _equal_cost(setting: Setting, per_byte: float, nbytes: int) -> float:
    """The bytes, at most `nbytes`, at which one more byte adds `per_byte` seconds to our bound's mean over the steps.

    If the delay hides a byte's other transfers, the byte costs its time through one port. Otherwise it costs 2(n - 1)/n
    times this time.
    """
    links, share = setting.links, 1 - 1 / setting.ranks
    port = simulate.lower_bound(setting.ranks, 1, Delays([math.inf]), 0.0, links.beta, setting.ports, links.topology)
    delays, more = setting.late.window.seconds, (2 * share - 1) * port
    if not more:
        return float(nbytes)
    count = math.ceil(len(delays) * (per_byte - port) / more)  # number of steps whose delay hides no further bytes
    return (
        0.0 if count <= 0 else float(nbytes) if count > len(delays) else min(nbytes, share * delays[count - 1] / more)
    )
