"""Keeps the children that this process forks from its sockets and from what it does at its end.

A child may outlive the process, and a socket that it holds open would hide the process's end from the others. The core
does the same with the sockets that it has taken over (`cc/base/own_descriptors.h`).
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
        """Closes the descriptor, and does nothing else that another process could notice."""


_T = TypeVar("_T", bound=_Closable)
_own: weakref.WeakSet[_Closable] = weakref.WeakSet()


def close_in_children(made: _T) -> _T:
    """Returns the socket, file or selector, which children close."""
    _own.add(made)
    return made


def run_at_exit(function: Callable[[], object]) -> Callable[[], None]:
    """Has a function run when this process ends, and not when a child does.

    Returns:
      The function that `atexit.unregister` takes back.
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
