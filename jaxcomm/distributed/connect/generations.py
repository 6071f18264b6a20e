"""Agreement on the generations of a job. A generation is a set of processes, each with the number of its start.

JAX calls this number the incarnation. `live_devices` is a barrier of the live processes, and returns their
incarnations, the same in all of them. Each process publishes an entry before it enters the barrier. After the barrier,
each process compares the entries with the incarnations. If a process has ended or was started again, the processes
begin the next generation. All live processes are inside `live_devices` then, so they can connect. A generation's name
follows from the entries, so no process waits for another one here.

JAX's barrier identifies a process only by its number, so an earlier start of a process may have entered the barrier in
place of the present start. To detect this, an entry contains the incarnation of its process.

A process may read the entries late, when another process has entered the next barrier already. So each process
publishes the name with the entries' nonces before it goes on, and a late process accepts a name that was published with
the late process's nonce.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import jax

from jaxcomm import jax_compat
from jaxcomm.distributed import store
from jaxcomm.errors import JaxcommError

Incarnations = Mapping[int, int]  # by process

_ENTERED: Final = "jaxcomm/entered"
_NAMED: Final = "jaxcomm/named"


class BarrierEntry(NamedTuple):
    """The entry that a process publishes before it enters the barrier.

    Attributes:
      incarnation: the number of the process's start; 0 if the process has ended or starts later.
      nonce: a random text, different for each entry.
      generation: the generation in which the process is connected; None if it is not connected.
    """

    incarnation: int = 0
    nonce: str = ""
    generation: str | None = None


class AgreedGeneration(NamedTuple):
    """The generation that begins or goes on after a barrier.

    Attributes:
      name: the generation's name.
      nonces: the nonce of each live process's entry, by process in ascending order.
      absent: the live processes whose entry has another incarnation than the barrier's result: they have ended or were
        started again.
    """

    name: str
    nonces: list[str]
    absent: list[int]


def enter(process: int, generation: str | None) -> BarrierEntry:
    """Publishes that a process enters the barrier."""
    entry = BarrierEntry(jax_compat.own_incarnation(), secrets.token_hex(8), generation)
    store.client().key_value_set(f"{_ENTERED}/{process}", json.dumps(entry), allow_overwrite=True)
    return entry


def publish_end(process: int) -> None:
    """Publishes that this start of a process, which may be in the barrier in place of a newer start, has ended."""
    key, value = entry_of_ended(process)
    store.client().key_value_set(key, value, allow_overwrite=True)


def entry_of_ended(process: int) -> tuple[str, str]:
    """The key and the value that tell the other processes, while they connect, that a process has ended."""
    return f"{_ENTERED}/{process}", json.dumps(BarrierEntry())


def why_begun() -> str | None:
    """Why no generation of all processes can begin any more, or None if one can.

    The reason is that a process has ended, will start later, or has entered a barrier.
    """
    if not (entered := _all_entries()):
        return None
    absent = [process for process, entry in entered.items() if not entry.incarnation]
    return f"processes {_listed(absent)} have ended or start later" if absent else "the job has begun"


def agree(process: int, live: Incarnations, connected: Incarnations, entry: BarrierEntry) -> AgreedGeneration:
    """Returns the live processes' generation. All live processes call this after the barrier.

    Args:
      process: the number of this process.
      live: the result of the barrier.
      connected: the members of this process's generation; empty if the process is not connected.
      entry: this process's entry into the barrier.

    Returns:
      The generation `entry.generation` if all live processes are connected in it and no other process is a member of
      it. Otherwise a new generation.

    Raises:
      JaxcommError: for a process of `live`, an earlier start was in the barrier, or the process has ended since then.
    """
    entered = _entries(live)  # read before the names, because a process publishes a name before its next entry
    agreed = next((each for each in _names() if entry.nonce in each.nonces), None)
    if agreed is None:
        generations = {each.generation for each in entered.values()}
        keeps = generations == {entry.generation} and entry.generation is not None and {**connected} == {**live}
        nonces = [each.nonce for each in entered.values()]
        name = entry.generation if keeps and entry.generation is not None else _digest([sorted(live.items()), nonces])
        agreed = AgreedGeneration(name, nonces, _absent(entered, live))
    store.client().key_value_set(f"{_NAMED}/{process}", json.dumps(agreed), allow_overwrite=True)
    _require_present(agreed.absent)
    return agreed


def require_current(live: Incarnations, nonces: Sequence[str]) -> None:
    """Raises JaxcommError if a live process has ended, was started again or has entered another barrier.

    Args:
      live: the result of the barrier.
      nonces: the nonces of `AgreedGeneration`.
    """
    entered = _entries(live)
    _require_present(_absent(entered, live))
    if later := [each for each, nonce in zip(entered, nonces, strict=True) if entered[each].nonce != nonce]:
        raise JaxcommError(
            f"processes {_listed(later)} could not be connected, and try again.\n"
            "  Cure: go on. The next live_devices tries again."
        )


def _absent(entered: Mapping[int, BarrierEntry], live: Incarnations) -> list[int]:
    return sorted(process for process, incarnation in live.items() if entered[process].incarnation != incarnation)


def _require_present(absent: Sequence[int]) -> None:
    if absent:
        raise JaxcommError(
            f"processes {_listed(absent)} have ended or were started again.\n"
            "  Cure: go on. The next live_devices tries again."
        )


def _entries(live: Incarnations) -> dict[int, BarrierEntry]:
    found = _all_entries()
    return {process: found.get(process, BarrierEntry()) for process in sorted(live)}


def _all_entries() -> dict[int, BarrierEntry]:
    return {process: BarrierEntry(*json.loads(text)) for process, text in _find_all(_ENTERED).items()}


def _names() -> list[AgreedGeneration]:
    return [AgreedGeneration(*json.loads(text)) for text in _find_all(_NAMED).values()]


def _find_all(key: str) -> dict[int, str]:
    """The values that processes have published under a key that all generations share, by process."""
    try:
        found = store.client().key_value_dir_get(key)
    except jax.errors.JaxRuntimeError as error:
        raise JaxcommError(f"the job's key-value store failed: {str(error).splitlines()[0]}") from error
    return {int(name.rpartition("/")[2]): text for name, text in found}


def _listed(processes: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(processes)))


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
