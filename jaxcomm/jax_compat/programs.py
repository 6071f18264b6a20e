"""Compiled programs, and the client that runs them."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jax._src import xla_bridge
from jax._src.interpreters import pxla
from jaxlib import _hlo  # type: ignore[attr-defined]

_first_executions = threading.local()


def before_first_execution(function: Callable[[Any, Sequence[Any]], None]) -> None:
    """Calls `function` before a program runs for the first time.

    Args:
      function: (XLA's loaded executable, its devices in the order of their assignment) -> None.
    """
    build: Any = pxla.UnloadedMeshExecutable.build_unsafe_call
    call: Any = pxla.ExecuteReplicated.__call__
    new: weakref.WeakKeyDictionary[Any, Sequence[Any]] = weakref.WeakKeyDictionary()

    def build_and_remember(self: Any) -> Any:
        run = build(self)
        if self.device_list is not None:
            new[run] = tuple(self.device_list)
        return run

    def call_after(self: Any, *args: Any) -> Any:
        if new and not getattr(_first_executions, "are_unseen", False) and (devices := new.get(self)):
            function(self.xla_executable, devices)
            new.pop(self, None)  # not reached if `function` fails; the next execution then calls `function` again
        return call(self, *args)

    pxla.UnloadedMeshExecutable.build_unsafe_call = build_and_remember  # type: ignore[method-assign]
    pxla.ExecuteReplicated.__call__ = call_after  # type: ignore[method-assign]


@contextlib.contextmanager
def without_first_execution() -> Iterator[None]:
    """Exempts the programs that this thread runs inside the `with` statement from `before_first_execution`."""
    _first_executions.are_unseen = True
    try:
        yield
    finally:
        _first_executions.are_unseen = False


def program_text(executable: Any) -> str:
    """XLA's text of a loaded executable's program (HLO), without large constants and metadata."""
    options: Any = _hlo.HloPrintOptions()
    options.print_large_constants = False
    options.print_metadata = False
    text: str = executable.hlo_modules()[0].to_string(options)
    return text


def cpu_devices() -> int:
    """The number of CPU devices that this process will have, by JAX's option or XLA's flag."""
    asked: int = xla_bridge.num_cpu_devices.value
    flag = re.search(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return asked if asked > 0 else int(flag[1]) if flag else 1


def has_devices() -> bool:
    """Whether JAX has made a client for any platform. From then on JAX no longer reads its options for clients."""
    return xla_bridge.backends_are_initialized()
