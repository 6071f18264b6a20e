"""Threads play the live processes of a job after a barrier: they agree on the generation, or all get an error."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxcomm import jax_compat
from jaxcomm.distributed.connect import generations
from jaxcomm.distributed.connect.generations import BarrierEntry
from jaxcomm.errors import JaxcommError
from tests.distributed.stores import Store

LIVE = {0: 100, 1: 101, 3: 103}


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store()
    monkeypatch.setattr(jax_compat, "key_value_store", lambda: made)
    return made


def enter(monkeypatch: pytest.MonkeyPatch, process: int, incarnation: int, generation: str | None) -> BarrierEntry:
    monkeypatch.setattr(jax_compat, "own_incarnation", lambda: incarnation)
    return generations.enter(process, generation)


def agree(
    entries: Mapping[int, BarrierEntry], connected: Mapping[int, Mapping[int, int]], live: Mapping[int, int] = LIVE
) -> list[str]:
    """The result of each process with an entry, or its error's text."""

    def one(process: int) -> str:
        try:
            return generations.agree(process, live, connected.get(process, {}), entries[process]).name
        except JaxcommError as error:
            return str(error)

    with ThreadPoolExecutor(len(entries)) as pool:
        return [*pool.map(one, entries)]


@pytest.mark.parametrize("name", ["", "2f5a"])
def test_the_same_members_keep_their_generation(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    entries = {process: enter(monkeypatch, process, each, name) for process, each in LIVE.items()}
    assert agree(entries, dict.fromkeys(LIVE, LIVE)) == [name] * 3


@pytest.mark.parametrize(
    "before",
    [
        pytest.param({**LIVE, 2: 102}, id="a process has ended"),
        pytest.param({0: 100, 1: 101}, id="a process has joined"),
        pytest.param({**LIVE, 1: 99}, id="a process was started again"),
    ],
)
def test_other_members_begin_a_generation_with_one_name(
    monkeypatch: pytest.MonkeyPatch, before: dict[int, int]
) -> None:
    entries = {
        process: enter(monkeypatch, process, each, "a" if before.get(process) == each else None)
        for process, each in LIVE.items()
    }
    connected = {process: before for process, each in LIVE.items() if before.get(process) == each}
    found = agree(entries, connected)
    assert len({*found}) == 1 and found[0] not in ("", "a")


def test_a_process_that_could_not_connect_makes_all_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {
        process: enter(monkeypatch, process, each, "a" if process != 3 else None) for process, each in LIVE.items()
    }
    found = agree(entries, {0: LIVE, 1: LIVE})
    again = {
        process: enter(monkeypatch, process, each, "a" if process != 3 else None) for process, each in LIVE.items()
    }
    anew = agree(again, {0: LIVE, 1: LIVE})
    assert len({*found}) == len({*anew}) == 1 and found != anew, "each attempt has keys of its own"


@pytest.mark.parametrize("has_ended", [False, True])
def test_an_absent_process_is_an_error_of_all(monkeypatch: pytest.MonkeyPatch, has_ended: bool) -> None:
    entries = {process: enter(monkeypatch, process, each - (process == 3), "a") for process, each in LIVE.items()}
    if has_ended:
        entries[3] = enter(monkeypatch, 3, LIVE[3], "a")
        generations.publish_end(3)
    text = "processes 3 have ended or were started again.\n  Cure: go on. The next live_devices tries again."
    assert agree(entries, dict.fromkeys(LIVE, LIVE)) == [text] * 3


def test_a_late_process_takes_the_name_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {process: enter(monkeypatch, process, each, None) for process, each in LIVE.items()}
    late = {1: entries.pop(1)}
    first = agree(entries, {})
    enter(monkeypatch, 0, LIVE[0], None)  # the next barrier
    assert agree(late, {}) == first[:1]


def test_a_name_of_an_earlier_barrier_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {process: enter(monkeypatch, process, each, None) for process, each in LIVE.items()}
    first = agree(entries, {})
    later = {process: enter(monkeypatch, process, each, None) for process, each in LIVE.items()}
    assert len({*first, *agree(later, {})}) == 2


def test_members_that_do_not_connect_are_named_while_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {process: enter(monkeypatch, process, each, None) for process, each in LIVE.items()}
    nonces = [each.nonce for each in entries.values()]
    generations.require_current(LIVE, nonces)
    enter(monkeypatch, 3, LIVE[3], None)
    with pytest.raises(JaxcommError, match="processes 3 could not be connected, and try again"):
        generations.require_current(LIVE, nonces)
    generations.publish_end(3)
    with pytest.raises(JaxcommError, match="processes 3 have ended or were started again"):
        generations.require_current(LIVE, nonces)
