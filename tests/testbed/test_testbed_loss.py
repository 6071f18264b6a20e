"""Sums over a link that loses packets, if a part of the loss may stay unrepaired. Needs root."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxcomm.cli import main

pytestmark = [pytest.mark.root, pytest.mark.slow]

HOSTS, ELEMENTS, CALLS, BOUND = "abc", 300_000, 5, 0.1
JOB = f"""
import hashlib, jax, jaxcomm, json, numpy as np
from jaxcomm.train import Drop
jax.distributed.initialize()
mesh = jax.sharding.Mesh(jax.devices(), ("data",))
place = jax.NamedSharding(mesh, jax.P("data"))
drop = Drop({BOUND}, policy="network")
psum = jax.jit(jax.shard_map(lambda x: jaxcomm.psum(x, "data", drop=drop), mesh=mesh, in_specs=jax.P("data"),
                             out_specs=jax.P()))
whole = np.repeat(2.0 ** np.arange({len(HOSTS)}, dtype=np.float32), {ELEMENTS})
steps = np.arange({len(HOSTS)} * 7, dtype=np.int32)
x = [jax.make_array_from_callback(each.shape, place, lambda index, each=each: each[index]) for each in (whole, steps)]
sums = [[np.asarray(y.addressable_shards[0].data) for y in psum(x)] for _ in range({CALLS})]
print("FOUND", json.dumps({{
    "sums": [np.unique(one).tolist() for one, _ in sums],
    "digests": [hashlib.sha256(one.tobytes()).hexdigest() for one, _ in sums],
    "exact": all(np.array_equal(other, steps.reshape(-1, 7).sum(0)) for _, other in sums),
    "lost": [site["lost_bytes"] for site in jaxcomm.stats()],
}}))
"""
# Adds up integers over several steps, so that sums are exact. Each step may leave out what is not there after 1 ms.
LATE_JOB = f"""
import hashlib, jax, jax.numpy as jnp, jaxcomm, json, numpy as np
from jaxcomm.train import Drop, bounded_drop
jax.distributed.initialize()
mesh = jax.sharding.Mesh(jax.devices(), ("data",))
place = jax.NamedSharding(mesh, jax.P("data"))
dropping = bounded_drop("data", Drop({BOUND}, "deadline", segment_bytes=1024, seconds=1e-3))
def step(gradient, left_out):
    mean, state = dropping.update(gradient, dropping.init(gradient)._replace(left_out=left_out))
    return mean * {len(HOSTS)}, state.left_out
data = jax.P("data")
run = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(data, data), out_specs=(jax.P(), data)))
exact = jax.jit(jax.shard_map(lambda x: jaxcomm.psum(x, "data"), mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P()))
own = np.random.default_rng(jax.process_index()).integers(1, 9, {ELEMENTS}).astype(np.float32)
gradient = jax.make_array_from_process_local_data(place, own)
left_out, total, digests, shares = jnp.zeros_like(gradient), 0, [], []
for _ in range({CALLS}):
    mean, left_out = run(gradient, left_out)
    total = total + np.asarray(mean.addressable_shards[0].data)
    digests.append(hashlib.sha256(total.tobytes()).hexdigest())
    shares.append(float(np.mean(np.asarray(left_out.addressable_shards[0].data) != 0)))
missing = np.asarray(exact(left_out).addressable_shards[0].data)
whole = {CALLS} * np.asarray(exact(gradient).addressable_shards[0].data)
print("FOUND", json.dumps({{
    "digests": digests, "shares": shares, "exact": bool(np.array_equal(total + missing, whole)),
    "lost": sum(site["lost_bytes"] for site in jaxcomm.stats()),
}}))
"""


@pytest.fixture
def run_on_a_bad_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], list[dict[str, Any]]]:
    """Runs a job over UDP on three hosts, of which one loses packets. Returns what each process found."""

    def run(job: str) -> list[dict[str, Any]]:
        monkeypatch.setenv("JAX_PLATFORMS", "cpu")
        monkeypatch.setenv("JAXCOMM_TRANSPORT", "udp")
        monkeypatch.delenv("XLA_FLAGS", raising=False)
        file = tmp_path / "loss.toml"
        hosts = "".join(f'[[hosts]]\nname = "{host}"\n' for host in HOSTS)
        file.write_text(f'[[rails]]\nname = "eth0"\nmbit = 200\n{hosts}[[packet_loss]]\nhost = "b"\nrate = 0.05\n')
        assert (
            main(["testbed", "run", str(file), "--json", "--time-limit", "120", "--", sys.executable, "-c", job]) == 0
        )
        lines = [line.split("FOUND ")[1] for line in capfd.readouterr().err.splitlines() if "FOUND" in line]
        found = [json.loads(line) for line in lines]
        assert len(found) == len(HOSTS)
        return found

    return run


def test_ranks_get_the_same_of_what_is_lost(run_on_a_bad_line: Callable[[str], list[dict[str, Any]]]) -> None:
    found = run_on_a_bad_line(JOB)
    # The ranks contribute 1, 2 and 4. Up to two contributions may be lost; the others' mean times 3 is the sum.
    present = {sum(2**i for i in s) * 3 / len(s) for s in [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]}
    for each in found:
        assert each["exact"]
        assert each["digests"] == found[0]["digests"]
        assert all(set(sums) <= present for sums in each["sums"])
        most = BOUND * 4 * ELEMENTS * CALLS * (len(HOSTS) - 1) / len(HOSTS)
        assert all(lost <= most for lost in each["lost"])
    assert sum(sum(each["lost"]) for each in found) > 0


def test_what_is_late_is_added_in_a_later_step(run_on_a_bad_line: Callable[[str], list[dict[str, Any]]]) -> None:
    found = run_on_a_bad_line(LATE_JOB)
    for each in found:
        assert each["exact"]
        assert each["digests"] == found[0]["digests"]
        assert all(share <= BOUND for share in each["shares"])
    assert sum(each["lost"] for each in found) > 0
