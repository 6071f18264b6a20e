"""The switch of a testbed file: the buffer, and the queue lengths above which the switch drops packets."""

from __future__ import annotations

from typing import Annotated, Final, Self

import pydantic
from pydantic import Field

from jaxcomm.files import Value
from jaxcomm.plan.drops import Buffer

PRIORITIES: Final = 8
HEADER_BYTES: Final = 14  # size of the Ethernet header; a packet's bytes include the header

Bytes = Annotated[int, Field(ge=0, le=2**30, strict=True)]
ByPriority = Annotated[tuple[Bytes, ...], Field(min_length=PRIORITIES, max_length=PRIORITIES)]


class TestbedSwitch(Value):
    """A switch that connects all hosts. Each port has the rate of its host's link.

    Each port has eight queues, which share `buffer_bytes`. A packet's priority is the three highest bits of its DSCP,
    and priority 7 is served first. ECN-capable packets are important, and other packets are ordinary. An ordinary
    packet is dropped if its queue would exceed `thresholds[priority]` bytes. The default is S·(8 − priority)/8, where S
    is `threshold_bytes` or half of the buffer. An important packet is dropped if its queue would exceed
    `limits[priority]` bytes; the default is the size of the buffer. `plan` is the file of a plan whose thresholds the
    switch uses.

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
            raise ValueError("threshold_bytes is given beside thresholds, which it would determine; leave one out")
        if self.plan is not None and (others := self.model_fields_set - {"plan"}):
            raise ValueError(f"plan is given beside {', '.join(sorted(others))}, which the plan sets; leave one out")
        return self

    @property
    def ordinary(self) -> tuple[int, ...]:
        """The maximum bytes in a queue of each priority after an ordinary packet is added."""
        if self.thresholds is not None:
            return self.thresholds
        whole = self.buffer_bytes // 2 if self.threshold_bytes is None else self.threshold_bytes
        return tuple(whole * (PRIORITIES - priority) // PRIORITIES for priority in range(PRIORITIES))

    @property
    def important(self) -> tuple[int, ...]:
        """The maximum bytes in a queue of each priority after an important packet is added."""
        return self.limits or (self.buffer_bytes,) * PRIORITIES

    def with_thresholds(self, buffer: Buffer, mtu: int) -> TestbedSwitch:
        """Returns this switch with the thresholds of a plan. A plan's packets count as full-size packets.

        The plan's queue i has priority 7 − i, so queue 0 is served first. Queues without gradients in the plan keep the
        default thresholds for the size of the buffer.

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
