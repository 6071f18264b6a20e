"""The certificate of `jaxcomm check`: psum over GPUs is ours exactly where it says so, and lax's elsewhere."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm import environment
from jaxcomm.gpu import certificate, core
from jaxcomm.log import say_once
from tests.gpu import certified


def lowered() -> str:
    """A psum over eight devices, for GPUs."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows: Any = P("data")
    step = jax.shard_map(lambda x: jaxcomm.psum(x, "data"), mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
    x = jax.ShapeDtypeStruct((8, 4), jnp.float32)
    text: str = jax.jit(lambda x: step(x)).trace(x).lower(lowering_platforms=("cuda",)).as_text()
    return text


def changed(**changes: Any) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        document = json.loads(file.read_text())
        for name, value in changes.items():
            into = document["made_for"] if name in document["made_for"] else document
            into[name] = value
        file.write_text(json.dumps(document))

    return change


def failed(file: Path) -> None:
    document = json.loads(file.read_text())
    document["sections"]["devices"]["state"] = "left out: there is one GPU"
    file.write_text(json.dumps(document))


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "none": (Path.unlink, "`jaxcomm check` has not run here yet ("),
    "another device": (changed(devices=["GPU Y"]), "was made with devices GPU Y; here it is GPU X."),
    "another driver": (changed(driver="535.1"), "was made with driver 535.1; here it is 580.65."),
    "another JAX": (changed(jax="0.12"), "was made with jax 0.12; here it is 0.11."),
    "a section that has not passed": (failed, "section 'devices': left out: there is one GPU."),
    "no section": (changed(sections={}), "section 'exact': has not run."),
    "from the future": (changed(version=2), "is of version 2; this jaxcomm reads version 1."),
    "another file": (changed(format="jaxcomm-plan"), "is not a certificate of `jaxcomm check`."),
    "a section of another form": (changed(sections={"exact": "passed"}), "is damaged."),
    "no machine": (changed(made_for=None), "is damaged."),
    "cut short": (lambda file: file.write_bytes(file.read_bytes()[:-9]), "cannot be read: "),
    "no text": (lambda file: file.write_bytes(b"\xff\xfe\x00"), "cannot be read: "),
}


def test_what_was_shown_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    certified.use(monkeypatch, tmp_path, "process")
    text = lowered()
    assert "@jaxcomm_collective(" in text and "stablehlo.all_reduce" not in text


@pytest.mark.parametrize(("change", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_was_not_shown_on_this_very_machine_is_laxs_and_one_line_says_why(
    change: Callable[[Path], Any],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    change(certified.use(monkeypatch, tmp_path, "process"))
    say_once.cache_clear()
    with caplog.at_level(logging.WARNING, "jaxcomm"):
        assert all("@jaxcomm_" not in text and "stablehlo.all_reduce" in text for text in (lowered(), lowered()))
    (record,) = caplog.records
    assert record.message.startswith("jaxcomm.psum over GPUs runs as jax.lax's, without a plan: ")
    assert reason in record.message and "\n" not in record.message
    assert record.message.endswith("`jaxcomm check` shows on this machine whether ours works, and turns it on.")


def test_sums_over_one_process_say_nothing_of_several(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = certified.use(monkeypatch, tmp_path, "process")
    assert certificate.why_not("process") is None
    assert certificate.why_not("nccl") == f"by {file}, section 'nccl': has not run"


def test_it_lies_in_the_users_folder_for_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.CERTIFICATE, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert certificate.path() == Path("/state/jaxcomm/check.json")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert certificate.path() == Path.home() / ".local/state/jaxcomm/check.json"
    monkeypatch.setenv(environment.CERTIFICATE, "/elsewhere")
    assert certificate.path() == Path("/elsewhere")


@pytest.mark.skipif(not core.is_built(), reason="this installation has no CUDA core")
def test_it_names_the_core_and_every_version_also_without_a_gpu() -> None:
    here = certificate.here.__wrapped__()
    assert here["cuda"] == "13.0" and len(here["core"]) == 16 and here["jax"] == jax.__version__
    assert here["devices"] == [] or core.why_off() is None
