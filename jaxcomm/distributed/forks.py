"""Closes this process's sockets in forked children, and keeps this process's exit functions from running in them.

A child may outlive this process. While the child holds a socket open, the other processes cannot notice that this
process has terminated. The core also closes its own sockets in children (`cc/base/own_descriptors.h`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar


class _Closable(Protocol):
    def close(self) -> None:
        """Closes the descriptor. Must have no other effect that another process could notice."""


_T = TypeVar("_T", bound=_Closable)
_own: weakref.WeakSet[_Closable] = weakref.WeakSet()


def close_in_children(made: _T) -> _T:
    """Registers a socket, file or selector, and returns it. Forked children close all registered objects."""
    _own.add(made)
    return made


def run_at_exit(function: Callable[[], object]) -> Callable[[], None]:
    """Registers a function to run at the exit of this process, but not of its forked children.

    Returns:
      The argument for `atexit.unregister`.
    """
    process = os.getpid()

    def run() -> None:
        if os.getpid() == process:
            function()

    return atexit.register(run)


def _close_all() -> None:
    for made in [*_own]:
        with contextlib.suppress(OSError):
            made.close()


os.register_at_fork(after_in_child=_close_all)
