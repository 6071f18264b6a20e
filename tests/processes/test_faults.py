"""Processes that end: the others notice it at once and go on, and messages sent before still arrive."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from tests.processes import jobs

TRANSPORTS = ["shm", "tcp", "udp"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_processes_that_end_are_named_and_the_others_go_on(transport: str) -> None:
    found = jobs.run("tests.processes.faults", processes=4, transport=transport, JAXCOMM_DEADLINE_S="100")
    assert found[3].status == -signal.SIGKILL
    assert "ValueError: a bug of the user's" in found[2].output
    for left in (4, 3, 2):
        rank, leaves = left - 1, left < 4
        for process in found[:rank]:
            assert process.reports[f"before {left}"]["works"], process.output
            report = process.reports[f"of {left}"]
            words = f"process {rank} has left" if leaves else f"process {rank} "
            for error in report["errors"]:
                assert f"rank {rank} is gone: {words}" in error
                assert f"Cure: see what process {rank} on {socket.gethostname()} wrote last" in error
            assert len(report["errors"]) == 2
            waited = report["at"] - found[rank].reports["ends"]["at"]
            assert waited < 50, "it is not the deadline that ended the call"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["awaits", "starts"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_a_process_sends_last_arrives(transport: str, way: str) -> None:
    before = {*os.listdir("/dev/shm")}
    # Without it JAX ends processes that outlive the first one by a moment.
    found = jobs.run("tests.processes.exits", way, processes=3, transport=transport, JAX_ENABLE_RECOVERABILITY="1")
    for process in found:
        assert process.status == 0, process.output
    for process in found[:1] if way == "starts" else found:
        assert process.reports["last call"]["right"]
    assert not [name for name in {*os.listdir("/dev/shm")} - before if "jaxcomm" in name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "status"),
    [("returns", 0), ("exit", 3), ("raises", 1), ("atexit", 0), ("daemon", 0), ("shutdown", 0)],
)
def test_a_process_ends_after_the_steps_whose_results_it_dropped(way: str, status: int) -> None:
    first, second = jobs.run("tests.processes.ends", way, processes=2, transport="shm")
    assert first.status == status, first.output
    assert second.status == 0, second.output
    assert second.reports["last step"]["right"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_end_of_a_fork_is_not_its_parents(transport: str) -> None:
    for process in jobs.run("tests.processes.forks", processes=2, transport=transport, JAXCOMM_DEADLINE_S="20"):
        assert process.status == 0, process.output
        assert process.reports["before"]["right"] and process.reports["after"]["right"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_death_is_noticed_while_a_forked_child_lives(transport: str) -> None:
    found = jobs.run("tests.processes.forked_death", processes=2, transport=transport, JAXCOMM_DEADLINE_S="100")
    forked = found[1].reports["forked"]
    os.kill(forked["child"], signal.SIGKILL)  # it lives
    assert found[1].status == -signal.SIGKILL
    call = found[0].reports["call"]
    assert "rank 1 is gone: process 1 " in call["error"], found[0].output
    assert call["at"] - forked["at"] < 50, "it is not the deadline that ended the call"
