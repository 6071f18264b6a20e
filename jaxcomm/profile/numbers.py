"""The values that profiles are made of, with their bounds."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from jaxcomm.values import Value

Seconds = Annotated[float, Field(ge=0, le=1e9, strict=True, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=1, le=2**60, strict=True)]
Count = Annotated[int, Field(ge=0, le=2**60, strict=True)]
Share = Annotated[float, Field(ge=0, lt=1, strict=True, allow_inf_nan=False)]
Positive = Annotated[int, Field(ge=1, le=2**31, strict=True)]
Text = Annotated[str, Field(max_length=4096)]


class Sample(Value):
    """One timed collective: the whole buffer's bytes, and the seconds of one call."""

    bytes: Bytes
    seconds: Seconds
