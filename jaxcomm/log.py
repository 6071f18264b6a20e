"""The logger `jaxcomm`, and printable forms of names that come from a file or a program."""

from __future__ import annotations

import functools
import logging
import re
from typing import Final

_logger = logging.getLogger("jaxcomm")

# The control characters C0 and C1, text direction marks, other line ends, and surrogates.
_CONTROL: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def say(message: str) -> None:
    """Logs the message as a warning."""
    _logger.warning("%s", printable(message, keep="\n"))


@functools.cache
def say_once(message: str) -> None:
    """Logs the message as a warning, but only the first time."""
    say(message)


def printable(text: str, keep: str = "") -> str:
    """Returns the text with each control character replaced by an escape, such as `\\x1b`.

    Terminals obey control characters, and XML forbids them.

    Args:
      text: names of a plan, a profile or a run, or a text that contains such names.
      keep: control characters that are not replaced, such as line ends that belong to the text itself.
    """
    return _CONTROL.sub(
        lambda found: found[0] if found[0] in keep else found[0].encode("unicode_escape").decode(), text
    )
