"""The protocol between hosts that a plan chooses."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import pydantic
from pydantic import Field

from jaxcomm.files import Value


class Transport(Value):
    """UDP if the share of packets lost on the worst path, `loss_rate`, is `udp_from` or more; otherwise TCP.

    `jaxcomm.init(plan=…)` applies the protocol, unless JAXCOMM_TRANSPORT is set.
    """

    protocol: Literal["tcp", "udp"]
    loss_rate: Annotated[float, Field(ge=0, le=0.5, strict=True, allow_inf_nan=False)]
    udp_from: Annotated[float, Field(gt=0, le=0.5, strict=True, allow_inf_nan=False)]

    @pydantic.model_validator(mode="after")
    def _by_the_loss(self) -> Self:
        if (self.protocol == "udp") != (self.loss_rate >= self.udp_from):
            raise ValueError(
                f"protocol is {self.protocol}, but loss_rate is {self.loss_rate:g}; UDP is for a loss of "
                f"{self.udp_from:g} or more"
            )
        return self
