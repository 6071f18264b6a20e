"""The least time of a step, whatever its boundaries, order and schedules."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxcomm import simulate
from jaxcomm.planner.schedules.setting import Setting
from jaxcomm.profile import Bucket
from jaxcomm.simulate import Delays


def lower_bound(setting: Setting, gradients: Sequence[Bucket]) -> float:
    """Mean seconds from the late rank's last gradient on that no boundaries, order and schedules can beat.

    What is ready from r on takes at least as long as if all of it were ready at r, and summed by any calls.
    """
    bounds, nbytes = [], 0
    for gradient in reversed(gradients):
        nbytes += gradient.bytes
        bounds.append(gradient.ready_s - gradients[-1].ready_s + calls_lower_bound(setting, nbytes))
    return max(bounds)


def calls_lower_bound(setting: Setting, nbytes: int) -> float:
    """Mean seconds that no calls which sum `nbytes` together can beat: ours, NCCL's, or some of both.

    Calls of ours are bound like one of all their bytes. Some of NCCL's may be faster than one, but none has a better
    rate than the best of any size. If ours sum x bytes and NCCL the rest, their bound and the rest at that rate add up,
    which is convex in x: the least lies at an end, or where one more byte would cost ours as much as NCCL.
    """
    own = setting.lower_bound(nbytes)
    if not setting.executors or not setting.executors.nccl:
        return own
    rate = setting.executors.nccl_best_rate(nbytes)
    equal = _equal_cost(setting, 1 / rate, nbytes)
    both = [setting.lower_bound(part) + (nbytes - part) / rate for part in (math.floor(equal), math.ceil(equal))]
    return min(own, max(nbytes / rate, setting.nccl_seconds(1)), *both)


def _equal_cost(setting: Setting, per_byte: float, nbytes: int) -> float:
    """At most `nbytes`: the bytes of which one more costs our bound `per_byte` seconds, on average over the steps.

    A byte costs once the port's time where the delay hides the rest of its way, and 2(n - 1)/n times where it does not.
    """
    links, share = setting.links, 1 - 1 / setting.ranks
    port = simulate.lower_bound(setting.ranks, 1, Delays([math.inf]), 0.0, links.beta, setting.ports, links.topology)
    delays, more = setting.late.window.seconds, (2 * share - 1) * port
    if not more:
        return float(nbytes)
    count = math.ceil(len(delays) * (per_byte - port) / more)  # steps whose delay hides no more
    return (
        0.0 if count <= 0 else float(nbytes) if count > len(delays) else min(nbytes, share * delays[count - 1] / more)
    )
