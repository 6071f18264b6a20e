"""The modules that lower collectives on platforms other than CPUs, imported by name when a step needs them.

This package therefore does not depend on these modules, and a run on CPUs imports none of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Final, Protocol, cast

from jax.extend.core import Primitive
from jax.interpreters import mlir

_MODULES: Final = {"cuda": "jaxcomm.gpu.lowering"}


class PlatformRules(Protocol):
    """The functions of a platform's module."""

    def lower(
        self,
        lax: Primitive,
        context: mlir.LoweringRuleContext,
        *operands: Any,
        plan: str,
        bucket: str,
        where: str,
        **params: Any,
    ) -> Sequence[Any]:
        """Lowers our counterpart of the primitive `lax`. `where` is the line of the call in the user's code."""

    def register_arrivals(self) -> bool:
        """Registers the custom calls that record arrivals. Returns False if the platform's core is not built."""

    def register_segments(self) -> None:
        """Registers the custom calls of `jaxcomm.ffi.segments` once, if the platform's core is built."""


def rules_of(platform: str) -> PlatformRules:
    """The module that lowers for a platform. `platform` is JAX's name of the platform: "cuda"."""
    return cast(PlatformRules, importlib.import_module(_MODULES[platform]))
