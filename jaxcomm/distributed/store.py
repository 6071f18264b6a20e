"""The key-value store of a job: a process publishes a value, and all processes may look the value up.

Each `jax.distributed.initialize` starts with an empty store.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import jax

from jaxcomm import jax_compat
from jaxcomm.distributed.rails import outages
from jaxcomm.errors import JaxcommError

_P = ParamSpec("_P")
_T = TypeVar("_T")

_TIMEOUT_S = 300.0  # time in which another process must publish a value
_LOOK_S = 0.5  # time between two checks whether a wait must end
_ENDED = "jaxcomm/ended"
_GENERATIONS = "jaxcomm/generations"
_AT_ONCE_S = 0.05  # time to wait for a value that should already be published
_no_more_waits = threading.Event()
# The store's client at the last call of `begin`, and the arguments `name` and `watch` of that call.
_generation: tuple[Any, str, Callable[[], None] | None] = (None, "", None)


def publish(key: str, value: str) -> None:
    """Publishes a value to the other processes; later values under the same key are ignored.

    Raises:
      JaxcommError: `jax.distributed` has not been initialized, or its store has failed.
    """
    try:
        client().key_value_set(_full(key), value)
    except jax.errors.JaxRuntimeError as error:
        if "ALREADY_EXISTS" not in str(error):
            raise JaxcommError(f"the job's key-value store failed: {str(error).splitlines()[0]}") from error


def lookup(key: str, missing: str, of: int | None = None) -> str:
    """Returns the value that a process has published, or publishes within five minutes.

    Args:
      key: as in `publish`.
      missing: the first words of the error if no process has published the value.
      of: the process that publishes the value, if it is the only one and this process is connected with it. The
        wait then fails as soon as the process `of` has left or failed.

    Raises:
      JaxcommError: no process has published the value, or `jax.distributed` has not been initialized.
    """
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            return _get(key, min(_TIMEOUT_S if of is None else _LOOK_S, max(deadline - time.monotonic(), _AT_ONCE_S)))
        except jax.errors.JaxRuntimeError as error:
            if of is not None:
                outages.require_processes([of], missing)
            if "DEADLINE_EXCEEDED" in str(error) and time.monotonic() < deadline:
                continue
            raise JaxcommError(
                f"{missing} after {_TIMEOUT_S:.3g} s ({str(error).splitlines()[0]}).\n"
                "  Cure: run the same steps in all processes, in one order."
            ) from error


def find(key: str) -> str | None:
    """Returns the value that a process has published, or None.

    Raises:
      JaxcommError: `jax.distributed` has not been initialized, or its store has failed.
    """
    try:
        value: str = client().key_value_try_get(_full(key))
    except jax.errors.JaxRuntimeError as error:
        if "NOT_FOUND" in str(error):
            return None
        raise JaxcommError(f"the job's key-value store failed: {str(error).splitlines()[0]}") from error
    return value


def replace(key: str, value: str) -> None:
    """Publishes a value to the other processes, in place of the value under the same key.

    Raises:
      JaxcommError: as for `find`.
    """
    try:
        client().key_value_set(_full(key), value, allow_overwrite=True)
    except jax.errors.JaxRuntimeError as error:
        raise JaxcommError(f"the job's key-value store failed: {str(error).splitlines()[0]}") from error


def find_all(folder: str) -> list[str]:
    """Returns the values that processes have published under keys that begin with `folder` and a slash.

    Raises:
      JaxcommError: as for `find`.
    """
    try:
        return [value for _, value in client().key_value_dir_get(_full(folder))]
    except jax.errors.JaxRuntimeError as error:
        raise JaxcommError(f"the job's key-value store failed: {str(error).splitlines()[0]}") from error


def remove(key: str) -> None:
    """Deletes the value under a key, and all values under keys that begin with the key and a slash."""
    client().key_value_delete(_full(key))


def lookup_all(keys: Mapping[int, str], deadline: float) -> tuple[dict[int, str], list[int]]:
    """Returns the texts that processes have published or publish before a deadline, and the processes without a text.

    Args:
      keys: for each process, the key of its text.
      deadline: on the clock of `time.monotonic`.

    Raises:
      JaxcommError: `jax.distributed` has not been initialized, or `stop_waiting` or the generation's watch has ended
        the wait.
    """
    found, missing = {}, []
    for process, key in keys.items():
        try:
            found[process] = _get(key, max(deadline - time.monotonic(), _AT_ONCE_S))
        except jax.errors.JaxRuntimeError:
            missing.append(process)
    return found, missing


def cached(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Caches a function's results until another generation of the job begins."""
    results = functools.cache(function)
    made_for: Any = None

    @functools.wraps(function)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        nonlocal made_for
        if made_for != (now := (client(), generation())):
            results.cache_clear()
            made_for = now
        return results(*args, **kwargs)  # type: ignore[arg-type]  # arguments of cached functions are hashable

    return wrapper


def generation() -> str:
    """Returns the name of the current generation, to which keys belong; "" for the first generation."""
    return _generation[1] if _generation[0] is client() else ""


def begin(name: str, watch: Callable[[], None]) -> None:
    """Begins a generation: keys that are published or looked up from now on belong to it.

    Args:
      name: the generation's name.
      watch: called about twice a second during waits; raises an error if the wait cannot succeed.
    """
    global _generation
    client().key_value_set(f"{_GENERATIONS}/{name}", "", allow_overwrite=True)
    _generation = client(), name, watch


def publish_ended() -> None:
    """Publishes, for all generations, that a process has finished the job's work."""
    client().key_value_set(_ENDED, "", allow_overwrite=True)


def find_ended() -> bool:
    """Whether a process has called `publish_ended`."""
    try:
        client().key_value_try_get(_ENDED)
    except jax.errors.JaxRuntimeError:
        return False
    return True


def remove_earlier() -> None:
    """Deletes the values of all other generations, except the first one, whose keys contain no generation name."""
    for key, _ in client().key_value_dir_get(_GENERATIONS):
        if (name := key.rpartition("/")[2]) != generation():
            client().key_value_delete(f"jaxcomm/{name}")
            client().key_value_delete(key)


def client() -> Any:
    """Returns JAX's client of the store, which is a new object after each `jax.distributed.initialize`.

    Raises:
      JaxcommError: `jax.distributed` has not been initialized.
    """
    try:
        return jax_compat.key_value_store()
    except LookupError as error:
        raise JaxcommError(
            f"ranks are in several processes, but {error}.\n  Cure: call jax.distributed.initialize in each of them."
        ) from error


def stop_waiting() -> None:
    """Ends all waits for values of other processes, in all threads, because this process ends.

    A thread that waits in JAX's client while Python ends would abort the process.
    """
    _no_more_waits.set()


def _full(key: str) -> str:
    """The key's full name in the store, which includes the name of the current generation."""
    name = generation()
    return f"jaxcomm/{name}/{key}" if name else f"jaxcomm/{key}"


def _get(key: str, timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    while True:
        left_s = deadline - time.monotonic()
        look_s = max(min(left_s, _LOOK_S), _AT_ONCE_S)
        try:
            value: str = client().blocking_key_value_get(_full(key), round(1000 * look_s))
            return value
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error) or left_s <= _LOOK_S:
                raise
            if generation() and _generation[2] is not None:
                _generation[2]()
            if _no_more_waits.is_set():
                raise JaxcommError("this process ended before the processes of the job were connected") from error
