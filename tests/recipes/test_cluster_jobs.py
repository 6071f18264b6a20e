"""The files that start jobs on clusters: SLURM's, for which a script stands in, and Kubernetes'."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.recipes import slurm_job

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "recipes" / "cluster"
# Process 1 fails when it is first started; process 0 then waits until it is ended.
FAILS_FIRST = """
import os, pathlib, sys, time

first, started = (pathlib.Path(sys.argv[1], number) for number in ("0", os.environ["SLURM_PROCID"]))
if not started.exists():
    started.touch()
    while not first.exists() or started == first:
        time.sleep(0.01)
    sys.exit(3)
sys.stdout.write(f"process {started.name} on {os.environ['JAX_PLATFORMS']}\\n")
"""


def documents(name: str) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def pod(document: dict[str, Any]) -> dict[str, Any]:
    """The pods of a JobSet or of a TrainingRuntime."""
    spec = document["spec"]
    [job] = (spec["template"]["spec"] if "template" in spec else spec)["replicatedJobs"]
    return job["template"]["spec"]["template"]["spec"]


def variables(pod: dict[str, Any], process: int) -> dict[str, str]:
    """A process's environment in the pod; the only field that it asks for is its number."""
    return {each["name"]: each.get("value", str(process)) for each in pod["containers"][0]["env"]}


def test_a_job_whose_process_fails_starts_again_under_slurm(tmp_path: Path) -> None:
    found = slurm_job.run(FOLDER / "slurm.sh", ["-c", FAILS_FIRST, str(tmp_path)], 2, tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
    assert sorted(found.stdout.splitlines()) == [
        "process 0 on cpu",
        "process 1 on cpu",
        "start 0 ended with exit status 143",  # of the process that srun ended
    ]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_manifests_have_only_fields_of_their_kind(path: Path) -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models")
    kinds = {
        "JobSet": models.JobsetV1alpha2JobSet,
        "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
        "TrainJob": models.TrainerV1alpha1TrainJob,
    }
    for each in documents(path.name):
        assert (
            kinds[each["kind"]].from_dict(each).to_dict() == each
        )  # from_dict leaves out fields that it does not know


def test_train_jobs_fit_their_runtime() -> None:
    [runtime] = documents("trainjob_runtime.yaml")
    for name in ("trainjob_recipe.yaml", "trainjob_unchanged.yaml"):
        [job] = documents(name)
        assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
        assert str(job["spec"]["trainer"]["numNodes"]) == variables(pod(runtime), 0)["SLURM_NTASKS"]
        assert (ROOT / job["spec"]["trainer"]["command"][-1]).is_file()


def test_pods_find_each_other_by_their_variables() -> None:
    [recipe], [unchanged] = documents("jobset_recipe.yaml"), documents("jobset_unchanged.yaml")
    [runtime] = documents("trainjob_runtime.yaml")
    for document in (recipe, unchanged):
        name = document["metadata"]["name"]
        found = variables(pod(document), 1)
        assert found["JAX_COORDINATOR_ADDRESS"] == f"{name}-process-0-0.{name}:1234"
        assert found["SLURM_NTASKS"] == str(document["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"])
    own = variables(pod(unchanged), 0).keys() - {"JAXCOMM_EVERY_COLLECTIVE"}
    assert variables(pod(recipe), 0).keys() == own
    assert variables(pod(runtime), 0).keys() == own - {"JAX_COORDINATOR_ADDRESS"}  # Trainer sets it
    with socket.create_server(("127.0.0.1", 0)) as free:
        here = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free.getsockname()[1]}", "SLURM_NTASKS": "2", "XLA_FLAGS": ""}
    processes = [
        subprocess.Popen(
            [sys.executable, FOLDER / "train.py"],
            env={**os.environ, **variables(pod(unchanged), process), **here},
            stdout=subprocess.PIPE,
            text=True,
        )
        for process in range(2)
    ]
    assert [each.communicate(timeout=150)[0] for each in processes] == ["distance 0.000 over 2 processes\n", ""]
