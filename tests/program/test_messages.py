"""The messages of schedules, run between simulated ranks: no deadlock, and the same bits as the schedules' programs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from jaxcomm import schedules
from jaxcomm.program.messages import BUFFER, compile_messages
from jaxcomm.program.program import compile
from jaxcomm.schedules import Schedule
from tests.schedules.schedule_cases import CASES

CC = Path(__file__).parents[2] / "cc"
SOURCES = ["gpu/nccl/simulation/simulate.cc", "gpu/nccl/simulation/simulation.cc", "gpu/nccl/runner.cc"]
SOURCES += ["program/messages.cc", "executor/layout.cc", "program/program.cc", "kernels/isa_plain.cc"]


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that runs messages between simulated ranks."""
    binary = tmp_path_factory.mktemp("simulation") / "simulate"
    command = ["c++", "-std=c++17", "-O1", "-ffp-contract=off", f"-I{CC.parent}", *(str(CC / s) for s in SOURCES)]
    subprocess.run([*command, "-o", str(binary)], check=True, timeout=300)
    return binary


def arguments(folder: Path, name: str, schedule: Schedule) -> list[str]:
    """The files of one schedule, for the simulator."""
    program = folder / f"{name}, {schedule.ranks} ranks"
    program.write_bytes(compile(schedule))
    files = [str(program)]
    for messages in compile_messages(schedule):
        file = folder / f"{name}, {schedule.ranks} ranks, messages of {messages.rank}"
        file.write_bytes(messages.encode())
        files.append(str(file))
    return [*files, "--"]


@pytest.mark.parametrize("ranks", range(2, 17))
def test_every_schedule(simulator: Path, ranks: int, tmp_path: Path) -> None:
    files = [file for name, make in CASES.items() for file in arguments(tmp_path, name, make(ranks))]
    result = subprocess.run([str(simulator), "6", *files], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout.splitlines()[-1]
    assert result.stdout.count(": same bits") == len(CASES)


@pytest.mark.parametrize("ranks", [2, 5, 8, 16])
@pytest.mark.parametrize("name", CASES)
def test_messages_meet_within_the_schedules_rounds(name: str, ranks: int) -> None:
    schedule = CASES[name](ranks)
    found = compile_messages(schedule)
    rounds = sum(phase.num_rounds for phase in schedule.phases)
    between: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for each in found:
        assert len(each.rounds) <= rounds
        for sends, receives, adds in each.rounds:
            for send in sends:
                between.setdefault((each.rank, send.peer), ([], []))[0].append(send.chunk)
            for receive in receives:
                between.setdefault((receive.peer, each.rank), ([], []))[1].append(receive.chunk)
            assert all(place <= each.slots for add in adds for place in add.places)
            own = {send.chunk for send in sends}
            assert not own & {receive.chunk for receive in receives if receive.place == BUFFER}
    assert all(sent == received for sent, received in between.values())
    assert sum(len(sent) for sent, _ in between.values()) == sum(len(phase.table()) for phase in schedule.phases)


def test_a_late_rank_holds_nobody_up_before_it_is_needed() -> None:
    schedule = schedules.straggler(8, 3, 14)
    early = schedule.phases[0].num_rounds
    for messages in compile_messages(schedule):
        first = messages.rounds[0] if messages.rank == 3 else None
        before = messages.rounds[:early] if first is None else ()
        assert all(3 not in {m.peer for m in (*r.sends, *r.receives)} for r in before)


def test_scratch_is_what_a_round_needs() -> None:
    assert {each.slots for each in compile_messages(schedules.ring(8))} == {1}
    assert {each.slots for each in compile_messages(schedules.direct(8))} == {7}


def test_the_simulator_tells_a_deadlock(simulator: Path, tmp_path: Path) -> None:
    files = arguments(tmp_path, "ring", schedules.ring(3))
    honest = Path(files[2]).read_bytes()
    Path(files[2]).write_bytes(without_a_round(honest))
    result = subprocess.run([str(simulator), "1", *files], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "deadlock: rank" in result.stdout


def without_a_round(encoded: bytes) -> bytes:
    """The messages of a rank of a ring, of which the last round of 1 send and 1 receive is gone."""
    words = [int.from_bytes(encoded[i : i + 4], "little") for i in range(0, len(encoded), 4)]
    words[6] -= 1
    return b"".join(word.to_bytes(4, "little") for word in words[: -3 - 2 - 3])
