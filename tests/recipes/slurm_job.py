"""A job of SLURM's on one node, for which a script stands in as `srun`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.processes import fork_server

# Runs the command once for each task.
SRUN = """#!/bin/bash
kills=${1#--kill-on-bad-exit=}
shift
tasks=$(seq 0 $((SLURM_NTASKS - 1)))
for task in $tasks; do
  SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_STEP_NODELIST=127.0.0.1 "$@" &
done
status=0
for task in $tasks; do
  wait -n || { status=$?; [ "$kills" = 0 ] || kill $(jobs -p); }
done
exit $status
"""


def run(script: Path, words: Sequence[str], tasks: int, folder: Path, **variables: str) -> subprocess.CompletedProcess:
    """Runs a batch script with these arguments and further variables; `folder` gets the commands that stand in."""
    (folder / "srun").write_text(SRUN)
    (folder / "srun").chmod(0o755)
    (folder / "hostname").write_text("#!/bin/sh\necho 127.0.0.1\n")
    (folder / "hostname").chmod(0o755)
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_NTASKS": str(tasks), "PATH": path, "XLA_FLAGS": ""}
    return subprocess.run(
        ["timeout", "150", "bash", script, *words],  # ends the whole process group
        capture_output=True,
        text=True,
        cwd=fork_server.ROOT,
        env={**os.environ, **job, **variables},
    )
