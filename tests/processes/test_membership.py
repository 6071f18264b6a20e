"""Processes die one after the other; the remaining ones notice it at once, and train on with the right sums."""

from __future__ import annotations

import signal

import pytest

from tests.processes import jobs

RAILS = "127.0.0.1,127.0.0.2"


@pytest.mark.parametrize(
    ("transport", "rails", "words"),
    [
        pytest.param("shm", "", ["1"], id="shm"),
        pytest.param("shm", "", ["1", "auto"], id="shm, with plans that the run makes", marks=pytest.mark.slow),
        pytest.param("tcp", "", ["2"], id="tcp"),
        pytest.param("tcp", RAILS, ["3"], id="rails"),
        pytest.param("udp", "", ["4"], id="udp"),
    ],
)
def test_those_that_are_left_go_on(transport: str, rails: str, words: list[str]) -> None:
    found = jobs.run(
        "tests.processes.membership",
        *words,
        processes=4,
        transport=transport,
        JAXCOMM_RAILS=rails,
        JAX_ENABLE_RECOVERABILITY="1",
        JAXCOMM_DEADLINE_S="100",
    )
    dead = [process for process, each in enumerate(found) if each.status == -signal.SIGKILL]
    left = [each for each in found if each.status == 0]
    assert len(dead) == len(left) == 2, "\n".join(each.output for each in found)
    dead.sort(key=lambda process: found[process].reports["dies"]["at"])
    for number, victim in enumerate(dead):
        for process in left + [found[dead[1]]] * (number == 0):
            loss, after = process.reports[f"loss of {victim}"], process.reports[f"without {victim}"]
            for error in loss["errors"]:
                assert f"rank {loss['rank']} is gone: process {victim} " in error
                assert "the others go on, and it rejoins when started again." in error
            for at in (loss["at"], loss["again"]):
                assert at - found[victim].reports["dies"]["at"] < 50, "it is not the deadline that ended the call"
            assert after == {"right": True, "gone": [[each, False] for each in sorted(dead[: number + 1])]}
    ends = [process.reports["end"] for process in left]
    assert [(end["error"], end["right"]) for end in ends] == [("", True)] * 2
    assert ends[0] == ends[1]
    begun = [outcome for outcome in found[0].reports["plans"]["outcomes"] if outcome == "begun"]
    assert len(begun) == (3 if "auto" in words else 0)
