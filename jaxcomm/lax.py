"""`jax.lax` with jaxcomm's collectives in place of its own.

    from jaxcomm import lax  # instead of `from jax import lax`

A name that `jaxcomm` and `jax.lax` both have is jaxcomm's here. All other names are jax.lax's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jax import lax as _theirs

from jaxcomm.collectives import all_gather as all_gather
from jaxcomm.collectives import pcast as pcast
from jaxcomm.collectives import pmax as pmax
from jaxcomm.collectives import pmean as pmean
from jaxcomm.collectives import pmin as pmin
from jaxcomm.collectives import psum as psum
from jaxcomm.collectives import psum_scatter as psum_scatter

if TYPE_CHECKING:
    from jax.lax import *  # type: ignore[assignment]  # noqa: F403  # mypy keeps the names above, pyright those below

    from jaxcomm.collectives import all_gather, pcast, pmax, pmean, pmin, psum, psum_scatter  # noqa: F401
else:

    def __getattr__(name: str) -> Any:
        try:
            return getattr(_theirs, name)
        except AttributeError:
            raise AttributeError(f"module 'jaxcomm.lax' has no attribute {name!r}, nor has 'jax.lax'") from None

    def __dir__() -> list[str]:
        return sorted({*dir(_theirs), *globals()})

    __all__ = [name for name in dir(_theirs) if not name.startswith("_")]  # includes all of jaxcomm's names
