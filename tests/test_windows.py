"""Windows from Python, as far as no GPU is needed: the custom call, and what is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jaxcomm import schedules
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi import cuda, fused, windows

built = pytest.mark.skipif(not cuda.is_built(), reason="built without CUDA; JAXCOMM_CUDA=ON make test builds it")


@built
@pytest.mark.parametrize("multicast", [False, True])
def test_the_call_is_lowered_without_a_device(monkeypatch, multicast):
    monkeypatch.setattr(fused, "MULTICAST", multicast)
    schedule = schedules.direct_join(3, 2, 4)

    def step(x, y):
        return windows.all_reduce({"x": x, "y": y}, schedule, "data", reduction="max")

    x, y = jnp.ones(8), jnp.ones((2, 3), jnp.bfloat16)
    text = jax.jit(step).trace(x, y).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count(f"@{windows.TARGET}(") == 1
    assert "has_side_effect = true" in text
    for attribute in ('group = "data"', 'plan = "direct_join"', 'reduction = "max"', 'what = "pmax"'):
        assert attribute in text
    assert f"multicast = {str(multicast).lower()}" in text
    assert fused.registered_program(schedule) in text
    assert "output_operand_alias" not in text  # the sum is made elsewhere


def test_multicast_is_off_until_gpus_have_shown_it():
    assert fused.MULTICAST is False


def test_without_the_cuda_core_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(cuda, "_LIBRARY", tmp_path / "missing.so")
    cuda.core.cache_clear()
    with pytest.raises(JaxcommError, match="CUDA core cannot be loaded"):
        windows.register.__wrapped__()
    cuda.core.cache_clear()
