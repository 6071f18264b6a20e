"""On a GPU: the sections of `jaxcomm check` that show bits, and the importance of segments beside the CPU's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomm.ffi import segments
from jaxcomm.gpu import certificate, core
from jaxcomm.gpu.checks import sections

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["machine", "exact", "types", "deadline", "devices", "nccl", "permutes"])
def test_what_the_check_shows(name: str) -> None:
    found = sections.run(name, sections.BUDGET)
    if found["state"].startswith("left out"):
        pytest.skip(found["state"])
    assert found["state"] == certificate.PASSED, found["rows"]


@pytest.mark.parametrize("size", [5, 100_003, 1 << 22])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_importance_is_the_cpus(dtype: str, size: int) -> None:
    core.register()
    x: Any = np.random.default_rng(size).standard_normal(size).astype(jnp.dtype(dtype))

    def on(platform: str) -> np.ndarray:
        device = jax.local_devices(backend=platform)[0]
        step = jax.jit(lambda x: segments.importance(x, 4096))
        return np.asarray(step(jax.device_put(x, device))).view(np.uint32)

    np.testing.assert_array_equal(on("cuda"), on("cpu"))
