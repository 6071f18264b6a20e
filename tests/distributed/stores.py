"""A key-value store within one process, for threads that play the processes of a job."""

from __future__ import annotations

import threading
import time

import jax


class Store:
    """A stand-in for the result of `jax_compat.key_value_store`."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self._changed = threading.Condition()

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        with self._changed:
            if key in self.values and not allow_overwrite:
                raise jax.errors.JaxRuntimeError(f"ALREADY_EXISTS: {key}")
            self.values[key] = value
            self._changed.notify_all()

    def blocking_key_value_get(self, key: str, timeout_ms: int) -> str:
        deadline = time.monotonic() + timeout_ms / 1000
        with self._changed:
            while key not in self.values:
                if not self._changed.wait(deadline - time.monotonic()):
                    raise jax.errors.JaxRuntimeError(f"DEADLINE_EXCEEDED: {key}")
            return self.values[key]

    def key_value_try_get(self, key: str) -> str:
        with self._changed:
            if key not in self.values:
                raise jax.errors.JaxRuntimeError(f"NOT_FOUND: {key}")
            return self.values[key]

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        with self._changed:
            return [(name, value) for name, value in self.values.items() if name.startswith(f"{key}/")]

    def key_value_delete(self, key: str) -> None:
        with self._changed:
            for each in [each for each in self.values if each == key or each.startswith(f"{key}/")]:
                del self.values[each]
