"""The recipes for jobs whose processes are started again: under SLURM, which a script stands in for, and Kubernetes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recipes import slurm_job

FOLDER = Path(__file__).parents[2] / "recipes" / "elastic"


@pytest.mark.slow
def test_a_killed_process_rejoins_under_slurm(tmp_path: Path) -> None:
    found = slurm_job.run(FOLDER / "slurm.sh", ["-m", "tests.processes.rejoin", "plain", str(tmp_path)], 3, tmp_path)
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
