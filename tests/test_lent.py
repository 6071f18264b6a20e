"""Communicators that XLA lends, as far as no GPU is needed: the part of the core that borrows, and what goes wrong."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomm import schedules
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi import cuda, lent, nccl

built = pytest.mark.skipif(not cuda.is_built(), reason="built without CUDA; JAXCOMM_CUDA=ON make test builds it")
lends = pytest.mark.skipif(lent.why_off() is not None, reason=lent.why_off() or "")


@built
def test_where_jaxlib_has_no_such_extension_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lent, "_LIBRARY", tmp_path / "missing.so")
    assert lent.why_off() == "jaxcomm was built for a jaxlib without XLA's extension for collectives"
    monkeypatch.setattr(cuda, "_LIBRARY", tmp_path / "missing.so")
    assert lent.why_off() == "jaxcomm was built without CUDA"


@built
def test_a_file_that_is_no_library_is_an_error_with_a_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (broken := tmp_path / "broken.so").write_bytes(b"no ELF")
    monkeypatch.setattr(lent, "_LIBRARY", broken)
    with pytest.raises(
        JaxcommError, match=r"cannot be loaded: .*broken\.so.*\n  Cure: build it here .*remove the file"
    ):
        lent.register.__wrapped__()


@built
@pytest.mark.skipif(not nccl.path(), reason="NVIDIA's wheel of NCCL is not installed")
def test_borrowing_without_a_device_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    if cuda.why_off() is None:
        pytest.skip("there is a device")
    with pytest.raises(JaxcommError, match="messages: choosing the device: "):
        lent.borrow("borrowed", ranks=3, rank=1, device=0, board=str(tmp_path / "board").encode())


@lends
def test_the_part_that_borrows_needs_only_the_c_library_and_shows_one_name() -> None:
    dynamic = subprocess.run(["readelf", "-d", lent._LIBRARY], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"\(NEEDED\).*\[(.+?)\.so", dynamic)) <= {"libstdc++", "libgcc_s", "libm", "libc"}
    assert "PATH)" not in dynamic
    names = subprocess.run(["nm", "-D", "--defined-only", lent._LIBRARY], capture_output=True, text=True, check=True)
    assert [line.split()[-1] for line in names.stdout.splitlines()] == ["jaxcomm_xla_lend"]


def step(target: str) -> jax.stages.Wrapped:
    """A call with the attributes that psum's has."""
    messages = nccl.register_messages((schedules.ring(2),))
    groups = {"groups": np.arange(2, dtype=np.int64), "sizes": np.array([2], np.int64)}
    call = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct((4,), jnp.float32))
    return jax.jit(lambda x: call(x, what="psum", group="data", messages=messages, reduction="sum", **groups))


@lends
def test_its_call_is_registered_and_lowered_without_a_device() -> None:
    lent.register()
    text = step(lent.TARGET).trace(jnp.ones(4)).lower(lowering_platforms=("cuda",)).as_text()
    assert f"@{lent.TARGET}(" in text


@built
def test_its_call_decodes_its_attributes() -> None:
    """As far as XLA's CPU backend, which has no streams, goes."""
    handler = jax.ffi.pycapsule(cuda.core().JaxcommMessagesLent)
    jax.ffi.register_ffi_target("jaxcomm_lent_on_cpus", {"execute": handler}, platform="cpu")
    with pytest.raises(jax.errors.JaxRuntimeError, match="Failed to get platform stream") as caught:
        step("jaxcomm_lent_on_cpus")(jnp.ones(4)).block_until_ready()
    assert "attribute" not in str(caught.value)
