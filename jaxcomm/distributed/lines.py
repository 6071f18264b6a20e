"""Lines of a stream as they come, with progress bars that stay readable."""

from __future__ import annotations

import re

_PROGRESS_S = 1.0  # between two states of a progress bar
_MOST_BYTES = 65536  # of a line
_END = re.compile(rb"\r?\n|\r(?!\Z)")  # what comes after a last \r decides what it is


class Lines:
    """Splits bytes into lines.

    What a carriage return ends is a state of a progress bar, which the next one replaces: of those, one a second.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._next_progress = 0.0

    def add(self, data: bytes, now: float) -> list[str]:
        """The lines that end in this, or are longer than 64 KiB.

        Args:
          data: what has come; b"" for the end of the stream.
          now: in seconds.
        """
        self._rest += data
        found, start = [], 0
        for end in _END.finditer(self._rest):
            text = self._rest[start : end.start()]
            start = end.end()
            if end[0] != b"\r":
                found.append(text)
            elif text and now >= self._next_progress:
                found.append(text)
                self._next_progress = now + _PROGRESS_S
        self._rest = self._rest[start:]
        if self._rest and (not data or len(self._rest) > _MOST_BYTES):
            found.append(self._rest.rstrip(b"\r"))
            self._rest = b""
        return [line.decode(errors="replace") for line in found]
