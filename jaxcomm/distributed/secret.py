"""The secret that the processes of a job share, and the keys made of it: processes that know them belong to it."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat

from jaxcomm.errors import JaxcommError

MAC_BYTES = 32
_LEAST_BYTES, _MOST_BYTES = 16, 65536


def new() -> bytes:
    """A secret for a job whose key-value store is trusted."""
    return secrets.token_bytes(32)


def read(path: str) -> bytes:
    """The secret that a file holds, all its bytes.

    Raises:
      JaxcommError: others than its owner may read it, it holds fewer than 16 bytes or more than 64 KiB, or is no file.
    """
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise JaxcommError(
            f"JAXCOMM_SECRET_FILE names {path}, which cannot be read: {error.strerror}.\n  Cure: check the path."
        ) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise JaxcommError(
            f"JAXCOMM_SECRET_FILE names {path}, whose mode {stat.S_IMODE(mode):03o} lets others in.\n"
            f"  Cure: chmod 600 {path}"
        )
    if not _LEAST_BYTES <= len(content) <= _MOST_BYTES:
        raise JaxcommError(
            f"JAXCOMM_SECRET_FILE names {path}, which holds "
            f"{'more than ' * (len(content) > _MOST_BYTES)}{min(len(content), _MOST_BYTES)} bytes; "
            f"a secret has {_LEAST_BYTES} to {_MOST_BYTES}.\n"
            f"  Cure: head -c 32 /dev/urandom > {path}, and the same file on each host"
        )
    return content


def key(secret: bytes, job: str, generation: int) -> bytes:
    """The key of one generation of a job: its signatures are worth nothing in another."""
    hashed = hashlib.blake2b(secret, digest_size=32, person=b"jaxcomm secret").digest()
    return mac(hashed, "generation", f"{generation} {job}".encode())


def mac(key: bytes, purpose: str, content: bytes) -> bytes:
    """Signs content for one purpose.

    Args:
      key: 32 bytes.
      purpose: at most 16 letters; a signature for one is invalid for another.
    """
    return hashlib.blake2b(content, key=key, digest_size=MAC_BYTES, person=purpose.encode()).digest()


def is_mac(signature: bytes, key: bytes, purpose: str, content: bytes) -> bool:
    """Whether the content was signed so; takes as long for each signature."""
    return hmac.compare_digest(signature, mac(key, purpose, content))
