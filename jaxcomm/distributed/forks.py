"""Closes this process's sockets in the children that it forks.

A child may outlive the process, and what it holds open would hide the process's end from the others. The core does the
same with what it has taken over (`cc/base/own_descriptors.h`).
"""

from __future__ import annotations

import contextlib
import os
import weakref
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


def _close_all() -> None:
    for made in [*_own]:
        with contextlib.suppress(OSError):
            made.close()


os.register_at_fork(after_in_child=_close_all)
