"""The name of the executor in a plan's entry."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError


def _checked(name: object) -> object:
    if name == "xla":
        return name
    raise PydanticCustomError("executor", "'xla', or null for the platform's own, which is the core on CPUs")


ExecutorName = Annotated[Literal["xla"], BeforeValidator(_checked)]
