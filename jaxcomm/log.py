"""What a user is told, and not as an error: the logger `jaxcomm`."""

from __future__ import annotations

import functools
import logging

_logger = logging.getLogger("jaxcomm")


def say(message: str) -> None:
    """Logs it as a warning."""
    _logger.warning("%s", message)


@functools.cache
def say_once(message: str) -> None:
    """As `say`, unless it was said before."""
    say(message)
