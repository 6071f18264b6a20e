"""Agreement on the generations of a job. A generation is a set of processes, each with the number of its start.

JAX calls the number of a start an incarnation. `live_devices` is a barrier of the live processes, and returns their
incarnations, the same in all of them. After each barrier, the live process with the lowest number compares these
incarnations with the generation in which the processes are connected. If a process has ended or was started again, the
comparing process names the next generation. All live processes are inside `live_devices` then, so they can connect.

JAX's barrier identifies a process only by its number, so an earlier start of a process may have entered the barrier in
place of the present start. To detect this, each process publishes its incarnation and a nonce before it enters. The
name of a generation is published with the nonces of all members, and a process accepts only a name with its own nonce.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import jax

from jaxcomm import jax_compat
from jaxcomm.distributed import store
from jaxcomm.errors import JaxcommError

Incarnations = Mapping[int, int]  # by process

_ENTERED: Final = "jaxcomm/entered"
_POLL_S: Final = 0.001
_LOOK_S: Final = 0.5
_NEXT: Final = "The next live_devices tries again."


class BarrierEntry(NamedTuple):
    """A process's entry into the barrier.

    Attributes:
      incarnation: the number of the process's start.
      nonce: a random text, different for each entry.
      generation: the generation in which the process is connected; None if it is not connected.
    """

    incarnation: int
    nonce: str
    generation: str | None


def enter(process: int, generation: str | None) -> BarrierEntry:
    """Publishes that a process enters the barrier."""
    entry = BarrierEntry(jax_compat.own_incarnation(), secrets.token_hex(8), generation)
    store.client().key_value_set(f"{_ENTERED}/{process}", json.dumps(entry), allow_overwrite=True)
    return entry


def agree(process: int, live: Incarnations, connected: Incarnations, entry: BarrierEntry, timeout_s: float) -> str:
    """Returns the name of the live processes' generation. All live processes call this after the barrier.

    Args:
      process: the number of this process.
      live: the result of the barrier.
      connected: the members of this process's generation; empty if the process is not connected.
      entry: this process's entry into the barrier.
      timeout_s: seconds in which the first live process must publish the name.

    Returns:
      `entry.generation` if all live processes are connected in that generation and no other process is a member of it.
      Otherwise the name of a new generation.

    Raises:
      JaxcommError: an earlier start of a live process was in the barrier, or the first live process published no name.
    """
    first = min(live)
    key = f"jaxcomm/generation of {_digest(sorted(live.items()))}"
    if process == first:
        entered = _entries(live)
        restarted = _restarted_in(entered, live)
        names = {each.generation for each in entered.values()}
        keeps = names == {entry.generation} and entry.generation is not None and {**connected} == {**live}
        nonces = [each.nonce for each in entered.values()]
        name = entry.generation if keeps else _digest([sorted(live.items()), nonces])
        store.client().key_value_set(key, json.dumps([nonces, name, restarted]), allow_overwrite=True)
    deadline, look = time.monotonic() + timeout_s, time.monotonic() + _LOOK_S
    while time.monotonic() < deadline:
        nonces, name, restarted = json.loads(_find(key) or "[[], null, []]")
        if entry.nonce in nonces:
            if restarted:
                raise _restarted(restarted)
            agreed: str = name
            return agreed
        if time.monotonic() > look:
            require_current(live)
            look = time.monotonic() + _LOOK_S
        time.sleep(_POLL_S)
    raise JaxcommError(
        f"process {first} has not named the generation of the live processes in {timeout_s:.3g} s.\n"
        f"  Cure: go on. {_NEXT}"
    )


def require_current(live: Incarnations) -> None:
    """Raises JaxcommError if a live process was started again since it left the barrier."""
    if restarted := _restarted_in(_entries(live), live):
        raise _restarted(restarted)


def _restarted_in(entered: Mapping[int, BarrierEntry], live: Incarnations) -> list[int]:
    return sorted(process for process, incarnation in live.items() if entered[process].incarnation != incarnation)


def _restarted(processes: Sequence[int]) -> JaxcommError:
    return JaxcommError(
        f"processes {', '.join(map(str, processes))} were started again and have not arrived.\n  Cure: go on. {_NEXT}"
    )


def _entries(live: Incarnations) -> dict[int, BarrierEntry]:
    return {process: BarrierEntry(*json.loads(_find(f"{_ENTERED}/{process}") or "[0, null, null]")) for process in live}


def _find(key: str) -> str | None:
    """The value of a key that is the same in all generations; None if the key has no value."""
    try:
        value: str = store.client().key_value_try_get(key)
    except jax.errors.JaxRuntimeError as error:
        if "NOT_FOUND" not in str(error):
            raise JaxcommError(f"the job's key-value store failed: {str(error).splitlines()[0]}") from error
        return None
    return value


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
