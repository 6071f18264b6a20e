"""The fused executor's door, without a GPU."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from jaxcomm import schedules
from jaxcomm.ffi import cuda, fused

built = pytest.mark.skipif(not cuda.is_built(), reason="this installation has no CUDA core")


def test_an_array_that_does_not_fit_the_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the array is \(3, 4\), the schedule is for 4 ranks"):
        fused.virtual_psum(jnp.zeros((3, 4)), schedules.ring(4))


@built
def test_it_registers_and_lowers_without_a_device() -> None:
    fused.register()
    assert fused._register_program(schedules.ring(4)) == fused._register_program(schedules.ring(4))
    fused.check()  # nothing has run
    assert fused.stats() == []
