"""Simulated jobs connect, lose processes and let them rejoin, in histories that each follow from a seed.

`python -m tests.distributed.simulated_job` runs more histories.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from jaxlib import _jax

from jaxcomm.distributed.launch import commands
from jaxcomm.jax_compat import coordination
from tests.distributed.simulated_job import job
from tests.distributed.simulated_job.scheduler import Owner, Scheduler
from tests.distributed.simulated_job.service import Client, Service

HISTORIES = 500
FOUND = {
    6: "a launcher that was killed after a process's end left other processes of the process's group behind",
    9: "the keys of generations without a surviving member stayed in the store",
    22: "a death during the first connecting ended all others",
    26: "the launcher's guard could kill groups of other programs after an error of the launcher",
    31: "the end of the launcher's guard ended the job",
    50: "a process that read the entries late chose another name for the generation",
    144: "late processes that arrived together trained a finished job from the beginning",
    152: "the last line was lost if it had no end and another program kept the process's stream open",
    233: "those that connected waited for a process until it was started again, though its end had been reported",
    240: "a process survived the launcher if its descriptor could not be opened",
    319: 'a death while plan="auto" began ended all others',
    788: 'a process that stopped while plan="auto" began ended another',
    950: "two calls of catch_up had one number after the lowest process had been started again twice",
}


@pytest.mark.parametrize("seed", FOUND, ids=FOUND.values())
def test_a_fault_that_a_history_found_stays_mended(seed: int) -> None:
    history = job.run(seed)
    assert not history.wrong, history.text()


def test_the_invariants_hold_in_each_history() -> None:
    for seed in range(HISTORIES):
        history = job.run(seed)
        assert not history.wrong, history.text()


def test_a_seed_gives_the_same_history_again() -> None:
    assert job.run(3).text() == job.run(3).text()


Result = list[Any]


def observe(client: Callable[..., Any], together: Callable[..., list[Any]]) -> Result:
    """Returns the observations of a job of two processes in a service.

    Args:
      together: calls functions at the same time, each in its order.
    """
    found: Result = []

    def tried(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        try:
            return call(*arguments, **keywords)
        except Exception as error:
            return str(error).partition(":")[0]

    first, second = client(0), client(1, shuts_down=False)
    together(first.connect, second.connect)
    found += [tried(first.key_value_set, "a", "1"), tried(first.key_value_set, "a", "2")]
    found += [tried(second.key_value_try_get, "a"), tried(second.key_value_try_get, "b")]
    found += [tried(second.blocking_key_value_get, "b", 20), tried(first.key_value_set, "a", "3", allow_overwrite=True)]
    found += [tried(first.key_value_set, "a/b", "4"), tried(first.key_value_set, "ab", "5")]
    found += [tried(second.key_value_dir_get, "a"), tried(first.key_value_delete, "a")]
    found += [tried(second.key_value_try_get, each) for each in ("a", "a/b", "ab")]
    found += together(
        lambda: tried(first.blocking_key_value_get, "c", 5000), lambda: tried(second.key_value_set, "c", "6")
    )
    incarnations = [each.get_live_nodes([number])[number] for number, each in enumerate((first, second))]
    found += [tried(first.get_live_nodes, [1])]
    live = {number: f"start {number}" for number in (0, 1)}
    names = dict(zip(incarnations, live.values(), strict=True))

    def barrier(of: Any) -> dict[int, str]:
        return {number: names.get(each, "newer") for number, each in of.get_live_nodes([0, 1]).items()}

    found += together(lambda: barrier(first), lambda: barrier(second))
    newer = client(1)  # the earlier start is still there
    newer.connect()
    found += together(lambda: barrier(first), lambda: barrier(second))  # it counts for the newer one
    found += together(lambda: barrier(first), lambda: barrier(newer))
    found += together(lambda: barrier(first), newer.shutdown)  # it ends while the first one waits
    found += [barrier(first), second.get_live_nodes([1])]
    again = client(1)
    again.connect()
    found += together(lambda: barrier(first), lambda: barrier(again))
    again.shutdown()
    first.shutdown()
    return found


def test_the_model_of_the_coordination_service_is_as_the_service() -> None:
    address = commands.local_coordinator()
    service = coordination.serve(address, 2, coordination.HEARTBEAT_S)

    def in_threads(*calls: Callable[[], Any]) -> list[Any]:
        results: list[Any] = [None] * len(calls)

        def run(number: int) -> None:
            results[number] = calls[number]()

        threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
        for thread in threads:
            thread.start()
            time.sleep(0.05)
        for thread in threads:
            thread.join()
        return results

    def real(process: int, shuts_down: bool = True) -> Any:  # JAX ends a process that shuts down what is shut down
        seconds = coordination.HEARTBEAT_S
        return _jax.get_distributed_runtime_client(
            address, process, init_timeout=10, heartbeat_timeout=seconds, shutdown_on_destruction=shuts_down
        )

    expected = observe(real, in_threads)
    del service
    scheduler, owner, found = Scheduler(0), Owner(), []
    modelled = Service(scheduler, 2)

    def in_tasks(*calls: Callable[[], Any]) -> list[Any]:
        results: list[Any] = [None] * len(calls)
        left = [len(calls)]

        def run(number: int) -> None:
            results[number] = calls[number]()
            left[0] -= 1

        for number in range(len(calls)):
            scheduler.spawn(owner, lambda number=number: run(number))
        while left[0]:
            scheduler.sleep(0.01)
        return results

    incarnations = iter(range(1, 10))

    def model(process: int, **_: bool) -> Client:
        return Client(modelled, process, next(incarnations))

    scheduler.spawn(owner, lambda: found.extend(observe(model, in_tasks)))
    scheduler.run(50.0, lambda: False)
    assert found == expected
