"""A training's gradients are measured, written to a profile, planned as buckets, and summed by the plan."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcomm
from jaxcomm import ffi, planner, profile, train
from jaxcomm.cli import main
from jaxcomm.collectives.buckets import in_backward
from jaxcomm.errors import ProfileError
from jaxcomm.ffi import marks
from jaxcomm.measure import measure_gradients
from tests.cli import documents
from tests.collectives.lax_cases import P, sharded
from tests.planner.profiles import made

TRAIN = """
import jax, jax.numpy as jnp
from jax import lax

def loss(params, x):
    for layer in params["layers"]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return jnp.mean((x - lax.pmean(x, "data")) ** 2)

def example():
    layers = [{"w": jax.random.normal(jax.random.key(i), (32, 32)), "b": jnp.zeros(32)} for i in range(3)]
    return loss, {"layers": layers}, jnp.ones((4, 32))

def alone():
    return loss

number = 3
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "training.py").write_text(TRAIN)
    profile.save(made(8, [0.02] * 4), tmp_path / "profile.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    ffi.reset_stats()
    yield
    sys.modules.pop("training", None)


def test_profile_plan_and_run(capsys: pytest.CaptureFixture[str]) -> None:
    before = profile.load("profile.json")
    assert main(["profile", "step", "training:example", "--steps", "3"]) == 0
    assert "6 gradients" in capsys.readouterr().out
    found = profile.load("profile.json")
    assert found.arrivals == before.arrivals and "gradients of training:example on 8" in found.provenance.source
    assert {bucket.name: bucket.bytes for bucket in found.buckets} == {
        f"layers/{i}/{name}": nbytes for i in range(3) for name, nbytes in (("w", 4096), ("b", 128))
    }
    assert all(bucket.ready_s > 0 for bucket in found.buckets)
    assert [bucket.ready_s for bucket in found.buckets] == sorted(bucket.ready_s for bucket in found.buckets)

    assert main(["plan", "profile.json", "--out", "plan.json", "--time-limit", "1"]) == 0
    plan = jaxcomm.plan.load("plan.json")
    assert plan.step is not None
    from training import example

    loss, params, x = example()

    def step(params: Any, x: Any) -> Any:
        return train.pmean_buckets(jax.grad(loss)(params, x), "data")

    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with jaxcomm.use_plan(plan):
        jax.block_until_ready(jax.jit(sharded(step, P(), P(), False, mesh))(params, x))
    sites = {site["name"]: site for site in ffi.sites() if site["calls"]}
    count = len(plan.step.planned)
    assert {name: (site["bytes"], site["plan"]) for name, site in sites.items()} == {
        f"psum bucket {i} of {count}": (bucket.bytes, plan.hash[:8]) for i, bucket in enumerate(plan.step.planned, 1)
    }


def test_json_and_another_place(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["profile", "step", "training:example", "--steps", "1", "--devices", "2", "--out", "new.json", "--json"]
    assert main(words) == 0
    assert len(documents.document(capsys.readouterr().out)["profile"]["buckets"]) == 6
    assert not profile.load("profile.json").buckets and len(profile.load("new.json").buckets) == 6


def test_what_comes_after_a_delay_in_the_backward_pass_is_ready_after_it() -> None:
    def late(x: Any) -> Any:
        [x] = in_backward([x], lambda leaves: leaves, lambda grads: [ffi.delay(grads[0], 0.05)])
        return x

    def loss(params: Any, x: Any) -> Any:
        x = late(jnp.tanh(x @ params["first"]))
        return jnp.sum(jnp.tanh(x @ params["second"]) ** 2)

    params = {"first": np.ones((3, 3), np.float32), "second": np.ones((3, 3), np.float32), "unused": np.ones(5)}
    params["none"] = np.ones((0, 3))
    buckets = measure_gradients(loss, params, np.ones((2, 3), np.float32), devices=8, steps=2)
    ready = {bucket.name: bucket.ready_s for bucket in buckets}
    assert ready.keys() == {"first", "second", "unused"}
    assert ready["first"] > 0.05 and ready["unused"] == 0 and ready["second"] > 0
    result = planner.plan(profile.with_gradients(made(8, None), buckets, "a test"), time_limit=1.0)
    assert result.step is not None and result.step.gradients[0].name == "unused"


def test_the_time_is_the_median_over_devices_and_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """One device is late, and one step is slow; the first three steps are warm-up."""
    slow = iter([9.0, 9.0, 9.0, 0.0, 0.5, 0.0])

    def record(run: Callable[[], Any]) -> list[marks.Mark]:
        extra = next(slow)
        return [marks.Mark(0, device, extra + (7.0 if device == 3 else 0.25)) for device in range(5)]

    monkeypatch.setattr(marks, "record", record)
    [bucket] = measure_gradients(lambda x: jnp.sum(x * x), np.ones(3, np.float32), devices=8, steps=3)
    assert bucket == profile.Bucket(name="", bytes=12, ready_s=0.25)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["training"], "'training': names no function"),
        (["training:nothing"], "training: has no function 'nothing'; it has: alone, example, loss"),
        (["training.py:number"], "training.py: has no function 'number'; it has: alone, example, loss"),
        (["nowhere:example"], "there is no module 'nowhere'"),
        (["training:alone"], r"training:alone: returned <function .*, not \(loss, params, \*args\)"),
        (["training:example", "--steps", "0"], "steps is 0; at least 1"),
        (["training:example", "--devices", "1"], "--devices is 1"),
        (["training:example", "--profile", "none.json"], "none.json"),
    ],
)
def test_mistakes(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "step", *words]) == 1
    error = capsys.readouterr().err
    assert re.search(says, error), error


def test_too_many_devices() -> None:
    with pytest.raises(ProfileError, match=r"devices is 99, but JAX has \d+ CPU devices"):
        measure_gradients(lambda params: jnp.sum(params), np.ones(3), devices=99)
