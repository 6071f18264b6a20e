"""Sums over two rails of a testbed: shares by rate, and the prepared schedule while a rail is cut. Needs root."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from jaxcomm import plan, planner, profile
from jaxcomm.cli import main
from tests.cli import documents
from tests.planner.test_lost_rails import on_hosts

pytestmark = [pytest.mark.root, pytest.mark.slow]

BYTES, CALLS = 8 << 20, 5
CLI = "jaxcomm.cli"
JOB = f"""
import jax, jaxcomm, numpy as np
jax.distributed.initialize()
mesh = jax.sharding.Mesh(jax.devices(), ("data",))
place = jax.NamedSharding(mesh, jax.P("data"))
psum = jax.jit(jax.shard_map(lambda x: jaxcomm.psum(x, "data"), mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P()))
whole = np.arange(2 * {BYTES // 4}, dtype=np.float32).reshape(2, -1) % 1001
x = jax.make_array_from_callback(whole.shape, place, lambda index: whole[index])
for _ in range({CALLS}):
    y = psum(x)
print("right" if np.array_equal(y.addressable_shards[0].data[0], whole.sum(0)) else "wrong")
"""


def test_a_buffer_takes_both_rails(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    file = tmp_path / "two.toml"
    rails = "".join(f'[[rails]]\nname = "eth{i}"\nmbit = {mbit}\n' for i, mbit in enumerate((400, 100)))
    file.write_text(rails + '[[hosts]]\nname = "a"\n[[hosts]]\nname = "b"\n')
    assert main(["testbed", "run", str(file), "--json", "--time-limit", "120", "--", sys.executable, "-c", JOB]) == 0
    shown = capfd.readouterr()
    assert shown.err.count("right") == 2
    for link in documents.document(shown.out)["links"]:
        share = {"eth0": 13 / 16, "eth1": 3 / 16}[link["rail"]]  # of sixteen segments, by rates of 4 to 1
        payload = BYTES * CALLS * share
        assert payload < link["sent_bytes"] < 1.2 * payload


def test_a_profile_of_two_rails_gives_their_shares(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    file, found, made = (tmp_path / name for name in ("two.toml", "profile.json", "plan.json"))
    rails = "".join(f'[[rails]]\nname = "eth{i}"\nmbit = {mbit}\n' for i, mbit in enumerate((400, 100)))
    file.write_text(rails + '[[hosts]]\nname = "a"\n[[hosts]]\nname = "b"\n')
    words = ["profile", "--sizes", "1KiB,64KiB", "--seconds", "20", "--steps", "5", "--out", str(found)]
    assert main(["testbed", "run", str(file), "--time-limit", "120", "--", sys.executable, "-m", CLI, *words]) == 0
    tables = {rail.name: rail.latency[-1] for rail in profile.load(found).rails}
    assert 3 < tables["eth1"].seconds / tables["eth0"].seconds < 5 and tables["eth0"].bytes >= 1 << 20
    assert main(["plan", str(found), "--time-limit", "1", "--out", str(made)]) == 0
    split = plan.load(made).rails
    assert split and split.split_for(BYTES)[0].share == pytest.approx(0.8, abs=0.04)
    job = JOB.replace("initialize()", f"initialize(); jaxcomm.init(plan={str(made)!r}, trial=False)")
    capfd.readouterr()
    assert main(["testbed", "run", str(file), "--json", "--time-limit", "120", "--", sys.executable, "-c", job]) == 0
    shown = capfd.readouterr()
    assert shown.err.count("right") == 2
    carried = {link["rail"]: link["sent_bytes"] for link in documents.document(shown.out)["links"]}
    assert carried["eth0"] / sum(carried.values()) == pytest.approx(0.8, abs=0.05)


LOST_RAIL = """
import sys, time, jax, jaxcomm, numpy as np
jax.distributed.initialize()
jaxcomm.init(plan=sys.argv[1], trial=False)
n, size = 3, 1 << 18
mesh = jax.sharding.Mesh(jax.devices(), ("data",))
place = jax.NamedSharding(mesh, jax.P("data"))
call = lambda plan: jax.jit(jax.shard_map(
    lambda x: jaxcomm.psum(x, "data", plan=plan), mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P()))
follow, agree = call(None), call({})

def agreed(lost):
    row = np.full((1, 1), any(not rail["is_open"] for rail in jaxcomm.stats().rails) == lost, np.float32)
    return agree(jax.make_array_from_process_local_data(place, row, (n, 1))).addressable_data(0)[0, 0] == n

def calls(count):
    before = counted()
    for number in range(count):
        whole = (np.arange(n * size, dtype=np.float32).reshape(n, -1) + number) % 1001
        found = follow(jax.make_array_from_callback(whole.shape, place, lambda index: whole[index]))
        assert np.array_equal(found.addressable_data(0)[0], whole.sum(0))
    return tuple(after - then for after, then in zip(counted(), before))

def counted():
    sites = [site for site in jaxcomm.stats() if site["plan"] != "direct" and site["bytes"] == 4 * size]
    return sum(site["calls"] for site in sites), sum(site["lost_rail_calls"] for site in sites)

for lost in (False, True, False):
    while not agreed(lost):
        calls(1)
        time.sleep(0.05)
    calls(2)
    print("lost" if lost else "whole", *calls(4), flush=True)
"""


def test_calls_run_the_prepared_schedule_while_a_rail_is_cut(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    made = planner.plan(on_hosts(3))
    assert made.lost_rails_for(1 << 20)
    plan.save(made, tmp_path / "plan.json")
    (tmp_path / "job.py").write_text(LOST_RAIL)
    rails = "".join(f'[[rails]]\nname = "eth{i}"\nmbit = 250\n' for i in range(2))
    hosts = "".join(f'[[hosts]]\nname = "{name}"\n' for name in "abc")
    cut = '[[cuts]]\nhost = "c"\nrail = "eth1"\nat_s = 20\nrepaired_s = 32\n'
    file = tmp_path / "three.toml"
    file.write_text(rails + hosts + cut)
    command = [sys.executable, str(tmp_path / "job.py"), str(tmp_path / "plan.json")]
    assert main(["testbed", "run", str(file), "--json", "--time-limit", "150", "--", *command]) == 0
    shown = capfd.readouterr().err
    assert shown.count("whole 4 0") == 6, shown
    assert shown.count("lost 4 4") == 3, shown
