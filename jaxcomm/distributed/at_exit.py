"""Runs functions when a process ends, but not in its forks: connections and threads are the process's."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable


def register(function: Callable[[], object]) -> Callable[[], None]:
    """Has a function run when this process ends.

    Returns:
      What `atexit.unregister` takes back.
    """
    process = os.getpid()

    def run() -> None:
        if os.getpid() == process:
            function()

    return atexit.register(run)
