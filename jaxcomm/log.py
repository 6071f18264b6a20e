"""Text for people: the logger `jaxcomm`, and names that a file or a program brings, made fit to be printed."""

from __future__ import annotations

import functools
import logging
import re
from typing import Final

_logger = logging.getLogger("jaxcomm")

# C0, C1, marks that turn the direction of text, other ends of lines, and halves of letters.
_CONTROL: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def say(message: str) -> None:
    """Logs it as a warning."""
    _logger.warning("%s", printable(message, keep="\n"))


@functools.cache
def say_once(message: str) -> None:
    """As `say`, unless it has logged this before."""
    say(message)


def printable(text: str, keep: str = "") -> str:
    """The text with each control character as its escape, such as `\\x1b`: terminals obey them, and XML forbids them.

    Args:
      text: names of a plan, a profile or a run, or a text that holds such.
      keep: control characters that stay, such as the ends of the text's own lines.
    """
    return _CONTROL.sub(
        lambda found: found[0] if found[0] in keep else found[0].encode("unicode_escape").decode(), text
    )
