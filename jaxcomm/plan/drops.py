"""The gradients that training may drop: the share of each layer, and the order in which a full switch drops them.

Layers are in forward order. Front layers have the highest priority, because the next forward pass needs them first.
Their gradients are also dropped first, because a trained model tolerates more loss in front layers (Wang et al.,
"Towards Domain-Specific Network Transport for Distributed DNN Training", sections 3.3 and 4.2.2). A gradient is divided
into segments. A segment is small if its mean |g| is at most the median of these means over the tensor's segments. Small
segments are dropped before large ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Final, Self

import pydantic
from pydantic import Field

from jaxcomm.errors import PlanError
from jaxcomm.files import Value
from jaxcomm.plan.queue_drops import switch_drops
from jaxcomm.plan.values import Seconds, Token

MAX_LAYERS: Final = 65536
SLACK: Final = 1e-9  # relative tolerance for sums of stored shares
AGREE: Final = 1e-6  # maximum difference between a stored, rounded share and the share that the thresholds give

Share = Annotated[float, Field(ge=0, lt=1, strict=True, allow_inf_nan=False)]
Part = Annotated[float, Field(ge=0, le=1, strict=True, allow_inf_nan=False)]
Load = Annotated[float, Field(ge=0, le=100, strict=True, allow_inf_nan=False)]
Size = Annotated[int, Field(ge=1, le=2**60, strict=True)]
Queues = Annotated[int, Field(ge=1, le=64, strict=True)]
Packets = Annotated[int, Field(ge=0, le=2**31, strict=True)]
LayerName = Annotated[str, Field(min_length=1, max_length=4096)]


class Tolerant(Value):
    """A layer's gradient: its queue (`priority`, 0 is served first) and the share of its bytes that a step may drop."""

    name: LayerName
    bytes: Size
    priority: Annotated[int, Field(ge=0, lt=64, strict=True)]
    share: Share


class Queue(Value):
    """A queue's thresholds, and the shares of gradients that the queue drops with these thresholds.

    `load` is the number of packets that arrive at the queue per packet that the switch can send. With `small` or more
    waiting packets the queue drops small gradients; with `large` waiting packets it drops all gradients. `small_drops`
    is the predicted share of dropped small gradients, and `large_drops` the predicted share of dropped large gradients.
    """

    load: Load
    small: Packets
    large: Packets
    small_drops: Part
    large_drops: Part


class Buffer(Value):
    """The thresholds of a switch whose buffer has room for `packets` packets.

    `rounds` is the predicted number of extra training steps that the switch's drops cost (null: not measured).
    """

    packets: Packets
    queues: Annotated[tuple[Queue, ...], Field(fail_fast=True, min_length=1, max_length=64)]
    rounds: Seconds | None


class Drops(Value):
    """The parts of the gradients that a training may drop. Nothing is dropped unless the training asks for drops.

    No layer drops more than the share `bound`, which comes from `source`. All layers together drop at most the share
    `budget`. Segments have `segment_bytes` bytes, and the share `small_share` of them is small. `rounds` is the
    predicted number of extra steps if the budget is used up and small gradients are dropped first (null: not measured).
    Summing a step's gradients takes `bsp_seconds` if every packet is delivered, and `seconds` with this policy.
    `status` and `gap` are the solver's results.
    """

    bound: Share
    source: Annotated[str, Field(max_length=4096)]
    budget: Share
    segment_bytes: Annotated[int, Field(ge=8, le=2**30, multiple_of=8, strict=True)] = 4096
    small_share: Annotated[float, Field(gt=0, lt=1, strict=True, allow_inf_nan=False)] = 0.5
    queues: Queues
    layers: Annotated[tuple[Tolerant, ...], Field(fail_fast=True, min_length=1, max_length=MAX_LAYERS)]
    buffer: Buffer | None = None
    rounds: Seconds | None
    bsp_seconds: Seconds
    seconds: Seconds
    status: Token
    gap: Seconds

    def layer(self, name: str) -> Tolerant:
        """The layer of this name. In the profile, the name belongs to a layer or a bucket.

        Raises:
          PlanError: there is no such layer.
        """
        if name not in self._places:
            known = ", ".join([layer.name for layer in self.layers[:8]] + ["…"] * (len(self.layers) > 8))
            raise PlanError(
                f"plan.drops has no layer {name!r}; its layers are: {known}.\n"
                "  Cure: name gradients as the profile does, or plan from a profile of this model."
            )
        return self.layers[self._places[name]]

    def segments(self, name: str) -> int:
        """The number of segments of this layer that a step may drop.

        Raises:
          PlanError: there is no such layer.
        """
        layer = self.layer(name)
        return math.floor(Fraction(repr(layer.share)) * layer.bytes / self.segment_bytes)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {layer.name: place for place, layer in enumerate(self.layers)}

    @pydantic.model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for mistake in self.mistakes():
            raise ValueError(mistake)
        return self

    def mistakes(self) -> Iterator[str]:
        """Yields an error text for each value that contradicts a priority, a bound, the buffer or predicted drops."""
        yield from self._layer_mistakes()
        yield from self._buffer_mistakes()

    def _layer_mistakes(self) -> Iterator[str]:
        seen: set[str] = set()
        for i, layer in enumerate(self.layers):
            here, priority = f"drops.layers[{i}]", priority_of(i, len(self.layers), self.queues)
            if layer.name in seen:
                yield f'{here}.name is "{layer.name}", which another layer has; names must differ'
            seen.add(layer.name)
            if layer.priority != priority:
                yield (
                    f"{here}.priority is {layer.priority}; layer {i} of {len(self.layers)} in {self.queues} queues has "
                    f"priority {priority}"
                )
            if layer.share > self.bound:
                yield f"{here}.share is {layer.share}; drops.bound allows {self.bound}"
        if self.budget > self.bound:
            yield f"drops.budget is {self.budget}; with drops.bound {self.bound} for every layer it cannot be more"
        total = sum(layer.bytes for layer in self.layers)
        lost = math.fsum(layer.share * layer.bytes for layer in self.layers)
        if lost > self.budget * total * (1 + SLACK):
            yield f"drops.layers may lose {lost / total:.9g} of all bytes; drops.budget allows {self.budget}"

    def _buffer_mistakes(self) -> Iterator[str]:
        if self.buffer is None:
            return
        queues, here = self.buffer.queues, "drops.buffer"
        if len(queues) != self.queues:
            yield f"{here}.queues has {len(queues)} entries; drops.queues is {self.queues}"
        for i, queue in enumerate(queues):
            if queue.small > queue.large:
                yield f"{here}.queues[{i}].small is {queue.small}; it must be at most large, which is {queue.large}"
        if (filled := sum(queue.large for queue in queues)) > self.buffer.packets:
            yield f"{here}.queues have room for {filled} packets; {here}.packets is {self.buffer.packets}"
        arriving, total = sum(queue.load for queue in queues), sum(layer.bytes for layer in self.layers)
        for i, (queue, share) in enumerate(zip(queues, queue_bytes(self.layers, self.queues), strict=True)):
            if not math.isclose(queue.load, arriving * share / total, rel_tol=AGREE, abs_tol=SLACK):
                real = arriving * share / total
                yield f"{here}.queues[{i}].load is {queue.load}; by the bytes of its layers it is {real:.9g}"
        thresholds = [(queue.small, queue.large) for queue in queues]
        predicted = switch_drops([queue.load for queue in queues], self.small_share, thresholds)
        for i, (queue, lost) in enumerate(zip(queues, predicted, strict=True)):
            for name, stored, found in zip(lost._fields, (queue.small_drops, queue.large_drops), lost, strict=True):
                if not math.isclose(stored, found, rel_tol=AGREE, abs_tol=AGREE):
                    yield f"{here}.queues[{i}].{name}_drops is {stored}; its thresholds and loads give {found:.9g}"
            if (mean := float(lost.mean(self.small_share))) > self.bound + AGREE:
                yield f"{here}.queues[{i}] loses {mean:.9g} of its packets; drops.bound allows {self.bound}"


def front_first(sizes: Sequence[int], bound: float, budget: float) -> list[float]:
    """The share that each layer may drop. The front layers get the budget first, each up to the bound.

    Args:
      sizes: bytes of each layer, in forward order.
      bound: the greatest share of a layer that may be dropped.
      budget: the share of all bytes that may be dropped.
    """
    # Exact fractions give exactly the bound to layers that may use all of it, and exactly 0 if no budget is left.
    whole, left = Fraction(repr(float(bound))), Fraction(repr(float(budget))) * sum(sizes)
    shares = []
    for nbytes in sizes:
        share = min(whole, left / nbytes)
        shares.append(float(share))
        left -= share * nbytes
    return shares


def queue_bytes(layers: Sequence[Tolerant], queues: int) -> list[int]:
    """The bytes of the layers in each queue."""
    found = [0] * queues
    for layer in layers:
        found[layer.priority] += layer.bytes
    return found


def priority_of(place: int, layers: int, queues: int) -> int:
    """The queue of a layer. The first layers are in the first queue, and all queues have about equal numbers of layers.

    Args:
      place: the layer's place in forward order, from 0.
      layers: number of layers.
      queues: number of queues.
    """
    return place * queues // layers
