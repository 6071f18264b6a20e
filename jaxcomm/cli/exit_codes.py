"""The conventions of all commands: exit codes, the version of JSON output, and errors with an exit code."""

from __future__ import annotations

from typing import Final

from jaxcomm.errors import JaxcommError

OK: Final = 0
FAILED: Final = 1
BAD_USAGE: Final = 2
VERSION: Final = 1  # version of all JSON output
INTERRUPTED: Final = 130  # 128 + SIGINT's number, as in shells


class CommandError(JaxcommError):
    """An error that ends the command with its own exit code instead of `FAILED`."""

    def __init__(self, message: str, exit_code: int) -> None:
        """Takes the message, with its cure, and the exit code."""
        super().__init__(message)
        self.exit_code = exit_code
