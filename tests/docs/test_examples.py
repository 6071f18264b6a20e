"""The examples in docstrings print what they say, and the public functions have one."""

from __future__ import annotations

import doctest
import inspect
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import jaxcomm
from tests.collectives import plans
from tests.newcomer.planned import write_plan

optax = pytest.importorskip("optax", reason="examples train by Optax")

CALLS = "psum pmean psum_scatter all_gather value_and_grad grad init use_plan stats"
SUBJECTS: dict[str, Any] = {name: getattr(jaxcomm, name) for name in CALLS.split()}
SUBJECTS |= {"elastic.catch_up": jaxcomm.elastic.catch_up, "train.Drop": jaxcomm.train.Drop}
SUBJECTS |= {
    f"{module}.{name}": subject
    for module in ("train", "schedules", "plan")
    for name in getattr(jaxcomm, module).__all__
    if inspect.isfunction(subject := getattr(getattr(jaxcomm, module), name))
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    write_plan(folder)
    jaxcomm.plan.save(plans.make((0, None, plans.SPECS["straggler"])), folder / "late_rank.json")
    return folder


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_example_prints_what_it_says(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, no_plan: None
) -> None:
    monkeypatch.chdir(folder)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    known = {"P": P, "jax": jax, "jaxcomm": jaxcomm, "jnp": jnp, "mesh": mesh, "optax": optax, "partial": partial}
    [test] = doctest.DocTestFinder(recurse=False).find(SUBJECTS[name], name, globs=known)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0
