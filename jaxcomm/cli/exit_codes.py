"""What commands return to the shell."""

from __future__ import annotations

from typing import Final

OK: Final = 0
FAILED: Final = 1
BAD_USAGE: Final = 2
INTERRUPTED: Final = 130  # 128 and SIGINT's number, as shells have it
