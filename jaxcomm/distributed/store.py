"""The key-value store that the processes of a job share: what one publishes, all may look up."""

from __future__ import annotations

from typing import Any

import jax

from jaxcomm import jax_compat
from jaxcomm.errors import JaxcommError

_TIMEOUT_S = 300  # for another process to come as far


def publish(key: str, value: str) -> None:
    """Publishes a value to the other processes, once; what is published later under the same key counts no more.

    Raises:
      JaxcommError: `jax.distributed` has not been initialized.
    """
    try:
        _store().key_value_set(f"jaxcomm/{key}", value)
    except jax.errors.JaxRuntimeError as error:
        if "ALREADY_EXISTS" not in str(error):
            raise


def lookup(key: str, missing: str) -> str:
    """The value that a process has published, or publishes within five minutes.

    Args:
      key: as it was published.
      missing: says in words that nobody has published it, for the error.

    Raises:
      JaxcommError: nobody has, or `jax.distributed` has not been initialized.
    """
    try:
        value: str = _store().blocking_key_value_get(f"jaxcomm/{key}", _TIMEOUT_S * 1000)
    except jax.errors.JaxRuntimeError as error:
        raise JaxcommError(
            f"{missing} after {_TIMEOUT_S} s ({str(error).splitlines()[0]}).\n"
            "  Cure: run the same steps in all processes, in one order."
        ) from error
    return value


def _store() -> Any:
    try:
        return jax_compat.key_value_store()
    except LookupError as error:
        raise JaxcommError(
            f"ranks live in several processes, but {error}.\n  Cure: call jax.distributed.initialize in each of them."
        ) from error
