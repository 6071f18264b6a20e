"""The switch of a testbed file: its buffer, and from which fill level on its queues drop."""

from __future__ import annotations

from typing import Annotated, Final, Self

import pydantic
from pydantic import Field

from jaxcomm.files import Value
from jaxcomm.plan.drops import Buffer

PRIORITIES: Final = 8
HEADER_BYTES: Final = 14  # of Ethernet, which count as a packet's

Bytes = Annotated[int, Field(ge=0, le=2**30, strict=True)]
ByPriority = Annotated[tuple[Bytes, ...], Field(min_length=PRIORITIES, max_length=PRIORITIES)]


class TestbedSwitch(Value):
    """A switch in which all hosts meet; its ports have the rates of their hosts' links.

    Each port has eight queues, which share `buffer_bytes`. A packet's priority is the three highest bits of its DSCP,
    and 7 is served first. A packet that is ECN-capable is important, another one ordinary. An ordinary one is dropped
    where its queue would hold more than `thresholds[priority]` bytes, which are S·(8 − priority)/8 where they are left
    out, and S is `threshold_bytes`, or half of the buffer. An important one is dropped where its queue would hold more
    than `limits[priority]`, which are the buffer where they are left out. `plan` is the file of a plan whose thresholds
    these are to be.

    Source: Wang et al., "Towards Domain-Specific Network Transport for Distributed DNN Training", section 5.2.
    """

    buffer_bytes: Bytes = 512 * 1024
    threshold_bytes: Bytes | None = None
    thresholds: ByPriority | None = None
    limits: ByPriority | None = None
    plan: str | None = None

    @pydantic.model_validator(mode="after")
    def _says_it_once(self) -> Self:
        if self.threshold_bytes is not None and self.thresholds is not None:
            raise ValueError(
                "threshold_bytes is given beside thresholds, which are what follows from it; leave one out"
            )
        if self.plan is not None and (others := self.model_fields_set - {"plan"}):
            raise ValueError(f"plan is given beside {', '.join(sorted(others))}, which the plan says; leave one out")
        return self

    @property
    def ordinary(self) -> tuple[int, ...]:
        """By priority, how many bytes a queue may hold with one more ordinary packet."""
        if self.thresholds is not None:
            return self.thresholds
        whole = self.buffer_bytes // 2 if self.threshold_bytes is None else self.threshold_bytes
        return tuple(whole * (PRIORITIES - priority) // PRIORITIES for priority in range(PRIORITIES))

    @property
    def important(self) -> tuple[int, ...]:
        """By priority, how many bytes a queue may hold with one more important packet."""
        return self.limits or (self.buffer_bytes,) * PRIORITIES

    def with_thresholds(self, buffer: Buffer, mtu: int) -> TestbedSwitch:
        """This one with the thresholds of a plan, whose packets are as long as they can be.

        The plan's queue i, of which 0 is served first, is that of priority 7 − i. Queues for which it has no gradients
        keep thresholds by the size of the buffer.

        Raises:
          ValueError: the plan has more queues than a port.
        """
        if len(buffer.queues) > PRIORITIES:
            raise ValueError(f"plan is for {len(buffer.queues)} queues; a port of the switch has {PRIORITIES}")
        packet = mtu + HEADER_BYTES
        plain = TestbedSwitch(buffer_bytes=buffer.packets * packet)
        ordinary, important = list(plain.ordinary), list(plain.important)
        for i, queue in enumerate(buffer.queues):
            if queue.large:
                ordinary[PRIORITIES - 1 - i], important[PRIORITIES - 1 - i] = queue.small * packet, queue.large * packet
        return plain.model_copy(update={"thresholds": tuple(ordinary), "limits": tuple(important), "plan": self.plan})
