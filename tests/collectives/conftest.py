"""Meshes for the tests of collectives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import pytest
from jax.sharding import AxisType

from tests.collectives.regression import make_mesh


@pytest.fixture
def flat() -> Iterator[Any]:
    """A mesh of one automatic axis, set by `jax.set_mesh`."""
    with jax.set_mesh(make_mesh((8,), AxisType.Auto)) as mesh:
        yield mesh
