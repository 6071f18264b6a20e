"""psum over GPUs of several hosts, as far as no GPU is needed: what processes publish to each other, join and lower."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from jaxcomm import schedules
from jaxcomm.errors import JaxcommError
from jaxcomm.gpu import across_processes, core, nccl
from tests.gpu import certified

ROOT = Path(__file__).parents[2]
built = pytest.mark.skipif(not core.is_built(), reason="built without CUDA; JAXCOMM_CUDA=ON make test builds it")

# Two processes with two devices each. Positions 0 and 2 of the mesh are process 1's, 1 and 3 are process 0's.
SCRIPT = """
import json, logging, sys
import jax, numpy as np
import jaxcomm
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from types import SimpleNamespace
from jaxcomm import jax_compat
from jaxcomm.distributed import records, store
from jaxcomm.gpu import core
from jaxcomm.gpu import certificate, nccl

port, process, options = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
jax.distributed.initialize(f"localhost:{port}", 2, process)
logging.disable(logging.WARNING)
joined = []
certificate.here = lambda: options["here"][process]
core.jax_has_it = lambda: False  # registers nothing with a backend
nccl.join = lambda group, **more: joined.append([group, {**more, "id": more["id"].hex()}])
nccl.unique_id = lambda: bytes([process + 1] * 128)
store._TIMEOUT_S = 2 if "gone" in options else 60
records.socket = SimpleNamespace(gethostname=lambda: options.get("names", "ab")[process])

mesh = Mesh(np.array([jax.devices()[i] for i in (2, 0, 3, 1)]).reshape(2, 2), ("data", "model"))
def step(x, y):
    if options.get("uneven"):
        return jaxcomm.psum(x, ("data", "model"), axis_index_groups=[[3, 0, 2], [1]])
    summed = jaxcomm.psum({"x": x, "y": y}, ("data", "model"))
    return jaxcomm.pmax(summed, "model"), jaxcomm.pmin(x, "data")
step = jax.shard_map(step, mesh=mesh, in_specs=P(), out_specs=P(("data", "model")), check_vma=False)
on_all = NamedSharding(mesh, P())
like = [jax.ShapeDtypeStruct(shape, kind, sharding=on_all) for shape, kind in (((8,), "float32"), ((3,), "bfloat16"))]
if options.get("gone") != process:
    try:
        text = jax.jit(lambda *xs: step(*xs)).trace(*like).lower(lowering_platforms=("cuda",)).as_text()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    print(json.dumps({"text": text, "joined": joined}), flush=True)
jax_compat.key_value_store().wait_at_barrier("end", 60000)
"""


def on_two_hosts(file: Path, uses: Sequence[str] = ("hosts",), **options: Any) -> list[dict[str, Any]]:
    """What each process that lowers has lowered and joined."""
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    options = {"here": [certified.HERE] * 2, **options}
    environment = os.environ | {
        "JAXCOMM_CERTIFICATE": str(certified.write(file / "check.json", uses)),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(port), str(process), json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for process in range(2)
    ]
    found = []
    for each in running:
        said, errors = each.communicate(timeout=120)
        assert each.returncode == 0, errors[-3000:]
        found += [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return found


def calls(text: str, target: str) -> list[str]:
    return [line for line in text.splitlines() if f"@{target}(" in line]


def attribute(call: str, name: str) -> str:
    found = re.search(rf'{name} = (?:"(.*?)"|dense<(.*?)>)', call)
    assert found is not None, call
    return found[1] or found[2]


def ranks(process: dict[str, Any], group: str) -> list[tuple[int, int]]:
    """Rank and ranks of each device that joined a group."""
    return sorted((more["rank"], more["ranks"]) for name, more in process["joined"] if name == group)


@built
def test_processes_on_two_hosts_lower_the_same_messages_and_join_as_their_ranks(tmp_path: Path) -> None:
    first, second = on_two_hosts(tmp_path)
    assert first["text"] == second["text"]
    psum, pmax = calls(first["text"], nccl.TARGET)
    assert 'name = "psum"' in psum and 'reduction = "sum"' in psum and psum.count("output_operand_alias<") == 2
    assert 'name = "pmax"' in pmax and 'reduction = "max"' in pmax
    assert attribute(psum, "messages") == nccl.register_messages((schedules.direct(4),))
    assert attribute(pmax, "messages") == nccl.register_messages((schedules.direct(2),))
    assert first["text"].count("stablehlo.all_reduce") == 1  # pmin's groups are on one host each
    summed, along_model = attribute(psum, "group"), attribute(pmax, "group")
    assert summed.startswith("data,model ") and along_model.startswith("model ")
    assert (ranks(first, summed), ranks(second, summed)) == ([(1, 4), (3, 4)], [(0, 4), (2, 4)])
    assert (ranks(first, along_model), ranks(second, along_model)) == ([(1, 2), (1, 2)], [(0, 2), (0, 2)])
    made_by_process_1 = bytes([2] * 128).hex()
    assert {more["id"] for each in (first, second) for _, more in each["joined"]} == {made_by_process_1}


@built
def test_a_rank_may_be_alone_in_its_group(tmp_path: Path) -> None:
    first, second = on_two_hosts(tmp_path, uneven=True)
    assert first["text"] == second["text"]
    (psum,) = calls(first["text"], nccl.TARGET)
    assert attribute(psum, "messages") == nccl.register_messages((schedules.direct(3),))
    group = attribute(psum, "group")
    assert (ranks(first, group), ranks(second, group)) == ([(0, 1), (0, 3)], [(1, 3), (2, 3)])


@built
@pytest.mark.parametrize(
    "options",
    [{"uses": ()}, {"names": "aa"}, {"here": [certified.HERE, {**certified.HERE, "driver": "575.1"}]}],
    ids=["not shown", "one host", "another driver on one of them"],
)
def test_without_several_hosts_or_before_it_was_shown_to_all_they_are_laxs(
    options: dict[str, Any], tmp_path: Path
) -> None:
    for process in on_two_hosts(tmp_path, **options):
        assert "stablehlo.all_reduce" in process["text"] and calls(process["text"], nccl.TARGET) == []
        assert process["joined"] == []


@built
def test_a_process_that_does_not_come_is_named(tmp_path: Path) -> None:
    (first,) = on_two_hosts(tmp_path, gone=1)
    assert first["text"].startswith("JaxcommError: process 1 has not published its host after 2 s (")
    assert "\n  Cure: run the same steps in all processes, in one order." in first["text"]


def test_after_a_failure_ranks_exchange_addresses_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    published: dict[str, str] = {}
    monkeypatch.setattr(across_processes.store, "publish", lambda key, value: published.setdefault(key, value))
    monkeypatch.setattr(across_processes.store, "lookup", lambda key, otherwise: published.get(key, ""))
    ids, joined = iter([bytes([1] * 128), bytes([2] * 128)]), []
    monkeypatch.setattr(nccl, "unique_id", lambda: next(ids))

    def join(group: str, **more: Any) -> None:
        joined.append(more["id"][0])
        if len(joined) == 1:
            raise JaxcommError("DeadlineError: rank 1 has not come")

    monkeypatch.setattr(nccl, "join", join)
    groups = (((0, 0), (1, 0)),)
    with pytest.raises(JaxcommError, match="rank 1 has not come"):
        across_processes._join(groups, "again")
    assert across_processes._join(groups, "again") == across_processes._join(groups, "again")
    assert joined == [1, 2]
