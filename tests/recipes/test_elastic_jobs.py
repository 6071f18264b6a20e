"""The recipes for jobs whose processes are started again: under SLURM, which a script stands in for, and Kubernetes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import fork_server

FOLDER = Path(__file__).parents[2] / "recipes" / "elastic"
# Runs the command once for each task, as `srun` does in a job of one node.
SRUN = """#!/bin/bash
[ "$1" = --kill-on-bad-exit=0 ] && shift
for task in $(seq 0 $((SLURM_NTASKS - 1))); do
  SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_STEP_NODELIST=127.0.0.1 "$@" &
done
wait
"""


def test_a_killed_process_rejoins_under_slurm(tmp_path: Path) -> None:
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    (tmp_path / "hostname").write_text("#!/bin/sh\necho 127.0.0.1\n")
    (tmp_path / "hostname").chmod(0o755)
    words = ["-m", "tests.processes.rejoin", "plain", str(tmp_path)]
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_NTASKS": "3", "PATH": path, "XLA_FLAGS": ""}
    found = subprocess.run(
        ["timeout", "150", "bash", FOLDER / "slurm.sh", *words],  # ends the whole process group
        capture_output=True,
        text=True,
        cwd=fork_server.ROOT,
        env={**os.environ, **job},
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count("process 2 ended with exit status 137, and is started again") == 1
    assert found.stdout.count('"case": "end"') == 3


def test_the_manifest_is_valid() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    yaml = pytest.importorskip("yaml")
    documents = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
    assert [each["kind"] for each in documents] == ["Service", "Job", "Job"]
    for each in documents:
        kubernetes_validate.validate(each, "1.34", strict=True)
