"""The job's secret: from a file that others cannot read, and keys that hold for one generation of one job."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxcomm.distributed.connect import secret
from jaxcomm.errors import JaxcommError


@pytest.mark.parametrize("size", [16, 32, 65536])
def test_a_file_of_the_user_alone_is_read_whole(tmp_path: Path, size: int) -> None:
    file = tmp_path / "secret"
    file.write_bytes(bytes(range(16)) * (size // 16))
    file.chmod(0o600)
    assert secret.read(str(file)) == bytes(range(16)) * (size // 16)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o601, 0o610])
def test_a_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "secret"
    file.write_bytes(bytes(32))
    file.chmod(mode)
    with pytest.raises(JaxcommError, match=rf"whose mode {mode:o} gives other users access\.\n  Cure: chmod 600 "):
        secret.read(str(file))


@pytest.mark.parametrize(("size", "words"), [(0, "holds 0 bytes"), (15, "holds 15 bytes"), (65537, "more than 65536")])
def test_a_file_too_short_or_too_long_is_refused(tmp_path: Path, size: int, words: str) -> None:
    file = tmp_path / "secret"
    file.write_bytes(bytes(size))
    file.chmod(0o600)
    with pytest.raises(JaxcommError, match=rf"{words}.*a secret has 16 to 65536\.\n  Cure: head -c 32"):
        secret.read(str(file))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(JaxcommError, match=r"JAXCOMM_SECRET_FILE names .*none, which cannot be read: No such file"):
        secret.read(str(tmp_path / "none"))


def test_keys_differ_by_secret_job_and_generation() -> None:
    keys = {
        secret.key(each, job, generation) for each in (b"a", b"b") for job in ("x", "1 x") for generation in (1, 11)
    }
    assert len(keys) == 8 and all(len(key) == 32 for key in keys)


def test_a_signature_holds_for_one_purpose() -> None:
    key = secret.key(secret.new(), "job", 1)
    signature = secret.mac(key, "proof", b"content")
    assert secret.is_mac(signature, key, "proof", b"content")
    assert not secret.is_mac(signature, key, "hello", b"content")
    assert not secret.is_mac(b"", key, "proof", b"content")
