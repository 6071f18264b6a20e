"""An XLA flag that makes what tests compile compile three times as fast, on the versions of XLA that have it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

# Without emitters of whole fusions: what tests compile runs once or twice.
FLAG: Final = "--xla_cpu_use_fusion_emitters=false"
_ANSWER: Final = "JAXCOMM_TESTS_XLA_FLAG"  # for the processes that this one starts
_PARSE_FLAGS: Final = """
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
from jaxlib import xla_client
xla_client.CompileOptions()
"""


def xla_flag() -> str:
    """The flag, or "" where this XLA does not know it: an unknown flag ends the process."""
    if _ANSWER not in os.environ:
        os.environ[_ANSWER] = FLAG if knows(FLAG) else ""
    return os.environ[_ANSWER]


def knows(flag: str) -> bool:
    """Whether XLA starts with this flag.

    Raises:
      RuntimeError: it does not start, for another reason than the flag.
    """
    done = subprocess.run(
        [sys.executable, "-c", _PARSE_FLAGS],
        env={**os.environ, "XLA_FLAGS": flag},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode and "Unknown flag" not in done.stderr:
        raise RuntimeError(f"XLA does not start with {flag}: {done.stderr}")
    return not done.returncode
