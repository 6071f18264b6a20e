"""Signals that end a command only after it has cleaned up."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Makes the first signal raise KeyboardInterrupt. Later signals are ignored until the `with` statement ends."""

    def interrupt(*_: object) -> None:
        ignore()
        raise KeyboardInterrupt

    before = {each: signal.getsignal(each) for each in _SIGNALS}
    wakeup = signal.set_wakeup_fd(-1)  # otherwise `jaxcomm.cli.main` would end the process at once
    for each, handler in before.items():
        if handler != signal.SIG_IGN:  # background jobs ignore signals
            signal.signal(each, interrupt)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        signal.set_wakeup_fd(wakeup)


def ignore() -> None:
    """Ignores SIGINT, SIGTERM and SIGHUP from now on."""
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
