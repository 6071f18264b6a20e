"""Decides which parts of the gradients a training may drop, and which of these parts a full switch drops first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from jaxcomm.cp_sat import Log
from jaxcomm.errors import JaxcommError, ProfileError
from jaxcomm.plan.drops import MAX_LAYERS, Buffer, Drops, Queue, Tolerant, front_first, priority_of, queue_bytes
from jaxcomm.plan.queue_drops import Floats, QueueDrops, switch_drops
from jaxcomm.planner.drops.budget import Shares, cheapest
from jaxcomm.planner.drops.published_bounds import published
from jaxcomm.planner.drops.queue_thresholds import Impact, thresholds
from jaxcomm.planner.drops.ring_cost import bounded, reliable
from jaxcomm.planner.rounding import significant
from jaxcomm.profile import Impact as Point
from jaxcomm.profile import Layer, Profile, Tolerance

BOUND: Final = 0.1  # the bound in the paper's training runs
QUEUES: Final = 8  # number of queues of a commodity switch
LARGE_WEIGHT: Final = 50.0  # ResNet50 tolerates losing 20 % of its small gradients or 0.4 % of its large ones (fig. 4b)


def decide(
    profile: Profile,
    *,
    bound: float | None = None,
    model: str = "",
    budget: float | None = None,
    time_limit: float = 10.0,
    seed: int = 0,
    log: Log = None,
) -> Drops | None:
    """The drop policy, if the profile has the tolerance of the training or the caller asks for a policy; else None.

    The layers come from `profile.tolerance`, or else each gradient bucket is a layer. Backward reaches the front layers
    last, so the bucket that is ready last is the first layer.

    Args:
      profile: the measurements.
      bound: the greatest share of a layer that may be dropped; None: the measured bound, else the published one, else
        10 %.
      model: architecture, to look up the published bound; empty: the profile's architecture.
      budget: the share of all bytes that may be dropped; None: the bound.
      time_limit: seconds for the solver, roughly.
      seed: seed of the solver.
      log: receives the lines of the solver's log.

    Raises:
      ProfileError: no gradients are known, two gradients have the same name, the model is not known, or no thresholds
        keep the drops within the bound.
      JaxcommError: a bound or budget out of range, or OR-Tools is needed and not installed.

    Source: Wang et al., "Towards Domain-Specific Network Transport for Distributed DNN Training", section 4.2.2 and
    appendix B.
    """
    if profile.tolerance is None and bound is None and budget is None and not model:
        return None
    if model and bound is None:
        published(model)  # raises for an unknown model before other mistakes are reported
    bears = profile.tolerance or Tolerance(layers=gradients(profile))
    if len(bears.layers) > MAX_LAYERS:
        raise ProfileError(f"tolerance.layers has {len(bears.layers)} entries; a plan holds {MAX_LAYERS}.")
    share, source = _bound(bears, bound, model or bears.model)
    whole = share if budget is None else budget
    if not 0 <= whole <= share:
        raise JaxcommError(
            f"budget is {whole}; it must be from 0 to the bound {share:g}, the most that each gradient may drop "
            f"({source}).\n  Cure: a smaller budget, or a greater bound."
        )
    shares, rounds = _shares(bears, share, whole, time_limit, seed, log)
    queues = bears.switch.queues if bears.switch else QUEUES
    layers = tuple(
        Tolerant(name=layer.name, bytes=layer.bytes, priority=priority_of(i, len(bears.layers), queues), share=part)
        for i, (layer, part) in enumerate(zip(bears.layers, shares.shares, strict=True))
    )
    link = profile.link.alpha_s, profile.link.beta_s_per_byte
    sizes = Counter((layer.bytes, layer.share) for layer in layers)
    reliably = {nbytes: reliable(profile.ranks, nbytes, *link, profile.packet_loss) for nbytes, _ in sizes}
    return Drops(
        bound=share,
        source=source,
        budget=whole,
        small_share=bears.small_share,
        queues=queues,
        layers=layers,
        buffer=_buffer(bears, layers, share),
        rounds=rounds,
        bsp_seconds=significant(sum(count * reliably[nbytes] for (nbytes, _), count in sizes.items())),
        seconds=significant(
            sum(
                count * bounded(profile.ranks, nbytes, *link, profile.packet_loss, part)
                for (nbytes, part), count in sizes.items()
            )
        ),
        status=shares.status,
        gap=significant(shares.gap),
    )


def gradients(profile: Profile) -> list[Layer]:
    """The gradient buckets in forward order, the reverse of the order in which backward makes them ready."""
    if not profile.buckets:
        raise ProfileError(
            "the profile has neither tolerance.layers nor buckets, so the gradients to drop are not known.\n"
            "  Cure: add a model's layers with `jaxcomm.profile.with_layers`, or `jaxcomm profile drop-bound --layers`."
        )
    places: dict[str, int] = {}
    for i, bucket in enumerate(profile.buckets):
        if not bucket.name or bucket.name in places:
            raise ProfileError(
                f'buckets[{i}].name is "{bucket.name}"'
                + (f", like that of buckets[{places[bucket.name]}]" if bucket.name else "")
                + "; a drop policy finds gradients by name.\n  Cure: give every bucket its own name."
            )
        places[bucket.name] = i
    order = sorted(places.items(), key=lambda item: (profile.buckets[item[1]].ready_s, item[1]), reverse=True)
    return [Layer(name=name, bytes=profile.buckets[i].bytes) for name, i in order]


def _bound(bears: Tolerance, given: float | None, model: str) -> tuple[float, str]:
    """The greatest share of a gradient that may be dropped, and its source."""
    if given is not None:
        if not 0 <= given < 1:
            raise JaxcommError(f"bound is {given}; it must be a share, from 0 to below 1.")
        return given, "given"
    if bears.bound is not None:
        return bears.bound, bears.trials.words() if bears.trials else "measured"
    if not model:
        return BOUND, "default"
    row = published(model)
    return row.selective, (
        f"published for {row.model}: {row.selective:.3g} with front layers and small gradients first, {row.random:.3g} "
        "at random"
    )


def _shares(
    bears: Tolerance, bound: float, budget: float, time_limit: float, seed: int, log: Log
) -> tuple[Shares, float | None]:
    """The share that each layer may drop, and the extra steps that these drops cost (None: no costs are known)."""
    sizes = [layer.bytes for layer in bears.layers]
    if not bears.layers[0].small:
        return Shares(front_first(sizes, bound, budget), "NOT_NEEDED", 0.0), None
    costs = [_smallest_first(layer, bears.small_share) for layer in bears.layers]
    if budget in (0.0, bound):
        found = Shares([budget] * len(sizes), "NOT_NEEDED", 0.0)
    else:
        found = cheapest(sizes, costs, bound, budget, time_limit=time_limit, seed=seed, log=log)
    parts = zip(costs, found.shares, strict=True)
    return found, significant(sum(float(cost(np.array([share]))[0]) for cost, share in parts))


def _smallest_first(layer: Layer, small_share: float) -> Callable[[Floats], Floats]:
    """The extra steps as a function of a layer's dropped share. Large gradients are dropped after all small ones."""
    small, large = _curve(layer.small), _curve(layer.large)

    def cost(share: Floats) -> Floats:
        return small(np.minimum(1, share / small_share)) + large(np.maximum(0, share - small_share) / (1 - small_share))

    return cost


def _curve(points: Sequence[Point]) -> Callable[[Floats], Floats]:
    """A piecewise linear curve through 0 and the measured points.

    Beyond the last point the last slope continues if it is above 0. Otherwise the curve is constant there.
    """
    shares, rounds = [0.0, *(point.share for point in points)], [0.0, *(point.rounds for point in points)]
    slope = max(0.0, (rounds[-1] - rounds[-2]) / (shares[-1] - shares[-2]))
    ends = [*shares, 1.0], [*rounds, rounds[-1] + slope * (1 - shares[-1])]
    return lambda share: np.interp(share, *ends)


def _buffer(bears: Tolerance, layers: Sequence[Tolerant], bound: float) -> Buffer | None:
    """The thresholds for the profile's switch, and the shares of gradients that the switch then drops."""
    if (switch := bears.switch) is None:
        return None
    held = queue_bytes(layers, switch.queues)
    offered = [significant(switch.load * nbytes / sum(held)) for nbytes in held]
    impacts = [_impact(bears, layers, queue) for queue in range(switch.queues)]
    chosen = thresholds(switch.buffer_packets, offered, bears.small_share, bound, impacts)
    lost = list(switch_drops(offered, bears.small_share, chosen))
    rounds = sum(float(impact(each)) for impact, each in zip(impacts, lost, strict=True))
    return Buffer(
        packets=switch.buffer_packets,
        queues=tuple(
            Queue(
                load=load,
                small=small,
                large=large,
                small_drops=significant(float(each.small)),
                large_drops=significant(float(each.large)),
            )
            for load, (small, large), each in zip(offered, chosen, lost, strict=True)
        ),
        rounds=significant(rounds) if bears.layers[0].small else None,
    )


def _impact(bears: Tolerance, layers: Sequence[Tolerant], queue: int) -> Impact:
    """The cost of a queue's drops: the extra steps if the profile has measurements, otherwise weighted dropped bytes.

    Bytes are weighted by the layer's place, because front layers tolerate more loss. Bytes of large gradients are also
    weighted by `LARGE_WEIGHT`.
    """
    here = [(i, layer) for i, layer in enumerate(bears.layers) if layers[i].priority == queue]
    small_share = bears.small_share
    if not bears.layers[0].small:
        weight = float(sum((i + 1) * layer.bytes for i, layer in here))
        return lambda lost: weight * (small_share * lost.small + LARGE_WEIGHT * (1 - small_share) * lost.large)
    small, large = [_curve(layer.small) for _, layer in here], [_curve(layer.large) for _, layer in here]

    def impact(lost: QueueDrops) -> Floats:
        steps = np.zeros_like(lost.small)
        for curve in small:
            steps += curve(lost.small)
        for curve in large:
            steps += curve(lost.large)
        return steps

    return impact
