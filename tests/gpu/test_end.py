"""The end of a process that has calls on GPUs."""

from __future__ import annotations

import subprocess
import sys

# The back end of a machine with GPUs, whose look at failures writes who looks.
SCRIPT = """
import os, sys
from jaxcomm import ffi
from jaxcomm.gpu import core, fused, lowering, nccl

core.jax_has_it = lambda: True
fused.register = nccl.register = lambda: None
ffi.add_backend = lambda backend: None
fused.check = lambda: os.write(1, b"looked\\n")
lowering.start()
child = os.fork()
if child:
    os.waitpid(child, 0)
sys.exit()
"""


def test_only_the_process_looks_for_failures_at_its_end_and_no_child_of_it() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], capture_output=True, text=True, timeout=100, check=True
    )
    assert run.stdout == "looked\n"
