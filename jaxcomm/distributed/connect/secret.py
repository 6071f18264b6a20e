"""The secret that a job's processes share, and its derived keys. A process with the secret belongs to the job."""

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
    """Returns a random secret, for a job whose key-value store is trusted."""
    return secrets.token_bytes(32)


def read(path: str) -> bytes:
    """Returns the bytes of a secret file.

    Raises:
      JaxcommError: the file cannot be read, users other than its owner have access, or its size is not 16 bytes to
        64 KiB.
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
            f"JAXCOMM_SECRET_FILE names {path}, whose mode {stat.S_IMODE(mode):03o} gives other users access.\n"
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
    """Returns the key of one generation of a job. Signatures with this key are invalid in all other generations."""
    hashed = hashlib.blake2b(secret, digest_size=32, person=b"jaxcomm secret").digest()
    return mac(hashed, "generation", f"{generation} {job}".encode())


def mac(key: bytes, purpose: str, content: bytes) -> bytes:
    """Signs content for one purpose.

    Args:
      key: 32 bytes.
      purpose: at most 16 letters. A signature for one purpose is invalid for all other purposes.
    """
    return hashlib.blake2b(content, key=key, digest_size=MAC_BYTES, person=purpose.encode()).digest()


def is_mac(signature: bytes, key: bytes, purpose: str, content: bytes) -> bool:
    """Returns whether a signature is valid, in a time that does not depend on the signature's content."""
    return hmac.compare_digest(signature, mac(key, purpose, content))
