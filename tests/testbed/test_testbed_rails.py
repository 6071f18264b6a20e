"""One buffer over two unlike rails of a testbed, and that the rails carried what their rates say. Root."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from jaxcomm.cli import main
from tests.cli import documents

pytestmark = [pytest.mark.root, pytest.mark.slow]

BYTES, CALLS = 8 << 20, 5
JOB = f"""
import jax, jaxcomm, numpy as np
jax.distributed.initialize()
mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
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
        share = {"eth0": 13 / 16, "eth1": 3 / 16}[link["rail"]]  # of sixteen segments, for rates of 4 to 1
        payload = BYTES * CALLS * share
        assert payload < link["sent_bytes"] < 1.2 * payload
