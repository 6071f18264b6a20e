"""psum over GPUs of several processes, as far as no GPU is needed: what they join, and the step that they lower."""

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

from jaxcomm import plan, planner
from jaxcomm.errors import JaxcommError
from jaxcomm.gpu import nccl
from jaxcomm.profile import Link, Profile, Provenance
from tests.gpu import certified

ROOT = Path(__file__).parents[2]
# Two processes with two devices each. Positions 0 and 2 of the mesh are process 1's, 1 and 3 are process 0's.
SCRIPT = """
import json, logging, sys
import jax, numpy as np
import jaxcomm
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxcomm import jax_compat, plan as plans
from jaxcomm.distributed import store
from jaxcomm.gpu import certificate, core, nccl

port, process, options = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
jax.distributed.initialize(f"localhost:{port}", 2, process)
logging.disable(logging.WARNING)
joined = []
certificate.here = lambda: options["here"][process]
core.jax_has_it = lambda: False  # registers nothing with a backend
core.is_built = lambda: True
nccl.register = lambda: None
nccl.CUDA.call = lambda *arguments, **more: None
nccl.join = lambda group, **more: joined.append([group, {**more, "id": more["id"].hex()}])
nccl.unique_id = lambda: bytes([process + 1] * 128)
store._TIMEOUT_S = 2 if "gone" in options else 60

plan = plans.load(options["plan"]) if options["plan"] else None
mesh = Mesh(np.array([jax.devices()[i] for i in (2, 0, 3, 1)]).reshape(2, 2), ("data", "model"))
def step(x, y):
    summed = jaxcomm.psum({"x": x, "y": y}, ("data", "model"), plan=plan)
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


def in_two_processes(folder: Path, uses: Sequence[str] = ("nccl", "process"), **options: Any) -> list[dict[str, Any]]:
    """The lowered and joined groups of each process that lowers."""
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    link = Link(alpha_s=1e-5, beta_s_per_byte=1e-10, source="made up")
    made = Profile(ranks=4, link=link, provenance=Provenance(source="made up", tool="test"))
    plan.save(planner.plan(made, ports=1), folder / "plan.json")
    options = {"here": [certified.HERE] * 2, "plan": str(folder / "plan.json"), **options}
    environment = os.environ | {
        "JAXCOMM_CERTIFICATE": str(certified.write(folder / "check.json", uses)),
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
    try:
        ended = [each.communicate(timeout=300) for each in running]
    finally:
        for each in running:
            each.kill()
    assert [each.returncode for each in running] == [0, 0], ended
    return [json.loads(out.splitlines()[-1]) for out, _ in ended if out.strip()]


def calls(text: str, target: str) -> list[str]:
    return [line for line in text.splitlines() if f"@{target}(" in line]


def test_processes_lower_the_same_call_under_a_plan_and_join_as_their_ranks(tmp_path: Path) -> None:
    first, second = in_two_processes(tmp_path)
    assert first["text"] == second["text"]
    (psum,) = calls(first["text"], nccl.TARGET)  # of a tree with two types
    assert 'name = "psum"' in psum and 'reduction = "sum"' in psum and psum.count("output_operand_alias<") == 2
    assert len(calls(first["text"], "jaxcomm_collective")) == 1  # pmin's groups are of one process each
    assert first["text"].count("stablehlo.all_reduce") == 2  # pmax, for which no plan is
    (group,) = {name for each in (first, second) for name, _ in each["joined"]}
    assert group.startswith("data,model ") and f'group = "{group}"' in psum
    ranks = [sorted((more["rank"], more["ranks"]) for _, more in each["joined"]) for each in (first, second)]
    assert ranks == [[(1, 4), (3, 4)], [(0, 4), (2, 4)]]
    made_by_process_1 = bytes([2] * 128).hex()
    assert {more["id"] for each in (first, second) for _, more in each["joined"]} == {made_by_process_1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"uses": ("process",)},
        {"plan": ""},
        {"here": [certified.HERE, {**certified.HERE, "driver": "575.1"}]},
    ],
    ids=["not shown", "no plan", "another driver in one of them"],
)
def test_sums_without_a_plan_or_before_all_have_shown_it_are_laxs(options: dict[str, Any], tmp_path: Path) -> None:
    for process in in_two_processes(tmp_path, **options):
        assert "stablehlo.all_reduce" in process["text"] and calls(process["text"], nccl.TARGET) == []
        assert process["joined"] == []


@pytest.mark.slow
def test_a_process_that_does_not_come_is_named(tmp_path: Path) -> None:
    (first,) = in_two_processes(tmp_path, gone=1)
    assert re.match(r"JaxcommError: process 1 has not \w+ .* after 2 s \(", first["text"]), first["text"]
    assert "\n  Cure: run the same steps in all processes, in one order." in first["text"]


def test_after_a_failure_ranks_exchange_an_id_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    published: dict[str, str] = {}
    monkeypatch.setattr(nccl.store, "publish", lambda key, value: published.setdefault(key, value))
    monkeypatch.setattr(nccl.store, "lookup", lambda key, otherwise: published.get(key, ""))
    ids, joined = iter([bytes([1] * 128), bytes([2] * 128)]), []
    monkeypatch.setattr(nccl, "unique_id", lambda: next(ids))

    def join(group: str, **more: Any) -> None:
        joined.append(more["id"][0])
        if len(joined) == 1:
            raise JaxcommError("DeadlineError: rank 1 has not come")

    monkeypatch.setattr(nccl, "join", join)
    groups = (((0, 0), (1, 0)),)
    with pytest.raises(JaxcommError, match="rank 1 has not come"):
        nccl._join(groups, "again")  # type: ignore[arg-type]  # pairs of numbers
    assert nccl._join(groups, "again") == nccl._join(groups, "again")  # type: ignore[arg-type]
    assert joined == [1, 2]
