"""Ranks in several processes: what these publish to each other, and the step that they lower for GPUs, without any."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxcomm.distributed import records
from jaxcomm.errors import JaxcommError
from tests.gpu import certified

ROOT = Path(__file__).parents[2]

PROCESS = """
import json, sys
import jax, jax.numpy as jnp
from jax.sharding import PartitionSpec as P

number, port = int(sys.argv[1]), sys.argv[2]
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(f"localhost:{port}", 2, number)

import jaxcomm
from jaxcomm.distributed import records, store
from jaxcomm.errors import JaxcommError
AS_THERE

def lowered(axis, platform="cuda"):
    mesh = jax.make_mesh((2, 2), ("host", "gpu"))
    over = P("host", "gpu")
    psum = lambda x: jaxcomm.psum(x, axis)
    step = jax.shard_map(psum, mesh=mesh, in_specs=over, out_specs=over, check_vma=False)
    x = jax.ShapeDtypeStruct((2, 6), jnp.float32, sharding=jax.sharding.NamedSharding(mesh, over))
    return jax.jit(step).trace(x).lower(lowering_platforms=(platform,)).as_text()


def error_of(call):
    try:
        call()
    except JaxcommError as error:
        return str(error)


found = {
    "job": records.job_name(),
    "hosts": [records.host_name(0), records.host_name(1)],
    "across": lowered("host"),
    "within": lowered("gpu"),
    "all": lowered(("host", "gpu")),
}
store._TIMEOUT_S = 1
found["no such process"] = error_of(lambda: records.host_name(7))
records.host_name = lambda process: f"host {process}"
found["within hosts"] = lowered("gpu")
found["between hosts"] = lowered("host")
print("found", json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes found."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path, "XLA_FLAGS": ""}
    file = tmp_path_factory.mktemp("certificate") / "check.json"
    environment["JAXCOMM_CERTIFICATE"] = str(certified.write(file, ("process", "host")))
    command = [sys.executable, "-c", PROCESS.replace("AS_THERE", certified.AS_THERE)]
    running = [
        subprocess.Popen([*command, str(i), str(port)], env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for i in range(2)
    ]
    try:
        said = [each.communicate(timeout=120)[0] for each in running]
    finally:
        for each in running:
            each.kill()
    assert [each.returncode for each in running] == [0, 0]
    return [json.loads(text.split("found ", 1)[1]) for text in said]


def test_processes_agree_on_a_name_of_their_job(found: list[dict[str, Any]]) -> None:
    assert found[0]["job"] == found[1]["job"] and re.fullmatch(r"[0-9a-f]{32}", found[0]["job"])


def test_processes_of_one_machine_share_a_host(found: list[dict[str, Any]]) -> None:
    assert {host for each in found for host in each["hosts"]} == {found[0]["hosts"][0]}
    assert found[0]["hosts"][0].startswith(socket.gethostname())
    assert found[0]["hosts"][0].endswith(f" {os.stat('/dev/shm').st_dev}")


@pytest.mark.parametrize("axis", ["across", "within", "all", "within hosts"])
def test_every_process_lowers_the_same_step(found: list[dict[str, Any]], axis: str) -> None:
    assert found[0][axis] == found[1][axis]
    assert found[0][axis].count("@jaxcomm_collective(") == 1


def test_gpus_are_named_by_their_process_and_cudas_number_there(found: list[dict[str, Any]]) -> None:
    def groups(axis: str) -> str:
        match = re.search(r"groups = dense<(.*?)>", found[0][axis])
        assert match
        return match[1]

    assert groups("across") == f"[0, {1 << 16}, 1, {1 << 16 | 1}]"
    assert groups("within") == f"[0, 1, {1 << 16}, {1 << 16 | 1}]"
    assert groups("all") == f"[0, 1, {1 << 16}, {1 << 16 | 1}]"


def test_over_several_hosts_it_is_laxs_until_messages_were_shown(found: list[dict[str, Any]]) -> None:
    """What it is then is in tests/gpu/test_hosts.py."""
    assert all("stablehlo.all_reduce" in each["between hosts"] for each in found)
    assert all("@jaxcomm_" not in each["between hosts"] for each in found)


def test_a_process_that_publishes_nothing_is_named(found: list[dict[str, Any]]) -> None:
    for each in found:
        assert "process 7 has not published its host after 1 s (DEADLINE_EXCEEDED" in each["no such process"]
        assert "\n  Cure: run the same steps in all processes" in each["no such process"]


def test_without_jax_distributed_there_is_no_job() -> None:
    with pytest.raises(
        JaxcommError, match=r"but jax\.distributed has not .*\n  Cure: call jax\.distributed\.initialize"
    ):
        records.job_name()
