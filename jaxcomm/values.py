"""The base of all values in our files."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    """Frozen, and refused where a file has a field that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")
