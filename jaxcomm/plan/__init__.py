"""The plan file: its schema, reading and writing, the proofs of its content, and its exports.

This package imports schedules, program, profile, ffi, files, numpy and pydantic, but never JAX. It imports OR-Tools
only to find a missing template. Names are imported on first use, so running without a plan needs no pydantic.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxcomm.plan.files import bind, encode, load, save
    from jaxcomm.plan.proof import proofs, verify
    from jaxcomm.plan.schema import Plan, json_schema
    from jaxcomm.plan.specs import build
    from jaxcomm.program.verifier import Proof

_HOMES = {
    **dict.fromkeys(["bind", "encode", "load", "save"], "files"),
    **dict.fromkeys(["Proof", "proofs", "verify"], "proof"),
    **dict.fromkeys(["Plan", "json_schema"], "schema"),
    "build": "specs",
}

__all__ = ["Plan", "Proof", "bind", "build", "encode", "json_schema", "load", "proofs", "save", "verify"]


if not TYPE_CHECKING:  # because type checkers would accept every name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'jaxcomm.plan' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(f"jaxcomm.plan.{_HOMES[name]}"), name)
        return value


def __dir__() -> list[str]:
    return __all__
