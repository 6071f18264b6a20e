"""XLA is asked for a flag before it is set."""

from __future__ import annotations

import os

from tests.quick_compilation import FLAG, knows, xla_flag


def test_a_flag_that_xla_does_not_know_is_not_set() -> None:
    assert knows("--xla_force_host_platform_device_count=2") and not knows("--xla_no_such_flag=false")
    assert xla_flag() == (FLAG if knows(FLAG) else "")
    assert xla_flag() in os.environ["XLA_FLAGS"]
