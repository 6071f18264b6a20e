"""Makes jaxcomm also run the collectives of programs that ask JAX for Gloo.

A program may ask for Gloo although jaxcomm's variables are set: by
`jax.config.update("jax_cpu_collectives_implementation", "gloo")`, or by the environment variable of this option. JAX
then asks jaxlib for Gloo's collectives. This module makes jaxlib return jaxcomm's collectives instead. Imports only the
standard library.
"""

from __future__ import annotations

import atexit
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

JAXLIB: Final = "jaxlib._jax"
MAKE_GLOO: Final = "make_gloo_tcp_collectives"


def replace() -> None:
    """Makes jaxlib return jaxcomm's collectives when JAX asks for Gloo's, now or when jaxlib is imported."""
    if JAXLIB in sys.modules:
        _replace_in(sys.modules[JAXLIB])
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds jaxlib's module as usual, and changes it when it is loaded."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != JAXLIB:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def execute_and_replace(module: ModuleType) -> None:
                execute(module)
                _replace_in(module)

            spec.loader.exec_module = execute_and_replace  # type: ignore[method-assign]
        return spec


def _replace_in(jaxlib: ModuleType) -> None:
    def make(*_args: Any, **_options: Any) -> Any:
        collectives = jaxlib.make_mpi_collectives()
        collectives.Init()
        atexit.register(collectives.Finalize)
        return collectives

    setattr(jaxlib, MAKE_GLOO, make)
