"""How a shared object is loaded and its C functions are called."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from jaxcomm import ffi
from jaxcomm.errors import JaxcommError, PlanError
from jaxcomm.ffi import core
from jaxcomm.ffi.core import Core
from jaxcomm.ffi.cpu import CPU


def test_an_error_of_a_c_function_is_an_exception_of_the_kind_that_is_asked_for() -> None:
    with pytest.raises(JaxcommError, match="program word 0: this is not a jaxcomm program") as caught:
        CPU.call("register_program", "damaged", b"no program at all...", 20)
    assert caught.type is JaxcommError
    with pytest.raises(PlanError, match="program word 0"):
        CPU.call("register_program", "damaged", b"no program at all...", 20, raises=PlanError)
    assert CPU.failure("reset_stats") is None


def test_arguments_of_the_wrong_type_are_refused() -> None:
    with pytest.raises(ctypes.ArgumentError):
        CPU.call("set_deadline", b"60")


def test_a_text_that_is_longer_than_expected_comes_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ffi.kernel_isa()
    monkeypatch.setattr(core, "_TEXT_BYTES", 0)
    assert ffi.kernel_isa() == whole


@pytest.mark.parametrize("is_there", [False, True])
def test_what_cannot_be_loaded_is_an_error_with_a_cure(tmp_path: Path, is_there: bool) -> None:
    path = tmp_path / "broken.so"
    if is_there:
        path.write_bytes(b"no ELF")
    with pytest.raises(
        JaxcommError, match=r"jaxcomm's C\+\+ core cannot be loaded: .*broken.so.*\n  Cure: install it\."
    ):
        Core("C++ core", path, {}, cure="install it").call("reset_stats")


def test_a_core_of_another_version_is_an_error_with_a_cure() -> None:
    old = Core("C++ core", CPU.path, {"not_there_yet": ()}, cure="install it")
    with pytest.raises(JaxcommError, match=r"jaxcomm_not_there_yet\.\n  Cure: install it\."):
        old.call("not_there_yet")
