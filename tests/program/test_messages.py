"""The messages of schedules, run between ranks over a stand-in for NCCL, give the bits of the schedules' programs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from jaxcomm import schedules
from jaxcomm.gpu.checks.expected import by_numpy
from jaxcomm.program.messages import BUFFER, compile_messages
from jaxcomm.schedules import Schedule
from tests.schedules.schedule_cases import CASES, ranks_of

CC = Path(__file__).parents[2] / "cc"
SOURCES = ["gpu/nccl/fake/play.cc", "gpu/nccl/fake/nccl.cc", "gpu/nccl/fake/reduce.cc", "gpu/nccl/library.cc"]
SOURCES += ["gpu/nccl/communicator.cc", "gpu/nccl/message_rounds.cc", "program/messages.cc", "executor/calls/layout.cc"]
SOURCES += ["kernels/isa_plain.cc"]
DTYPES = {np.dtype(np.float32): 10, np.dtype(ml_dtypes.bfloat16): 9}  # as cc/kernels/types.h numbers them


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program whose threads act as ranks and run messages over a stand-in for NCCL."""
    binary = tmp_path_factory.mktemp("messages") / "play"
    folders = [f"-I{CC.parent}", f"-I{CC / 'gpu/executor/fake'}"]
    command = ["c++", "-std=c++17", "-O1", "-ffp-contract=off", *folders, *(str(CC / s) for s in SOURCES)]
    subprocess.run([*command, "-o", str(binary), "-ldl", "-lpthread"], check=True, timeout=300)
    return binary


def files_of(folder: Path, schedule: Schedule) -> list[Path]:
    """Writes the encoded messages of each rank to a file, and returns the files."""
    files = []
    for messages in compile_messages(schedule):
        files.append(folder / f"{len(list(folder.iterdir()))} messages of {messages.rank}")
        files[-1].write_bytes(messages.encode())
    return files


def play(player: Path, files: list[Path], x: np.ndarray, seconds: int = 60) -> subprocess.CompletedProcess[bytes]:
    """Runs the messages in `files` on the rows of `x`, one row per rank."""
    command = [str(player), str(seconds), str(DTYPES[x.dtype]), *map(str, files)]
    return subprocess.run(command, input=x.tobytes(), capture_output=True, timeout=300)


@pytest.mark.parametrize("ranks", ranks_of([*range(2, 9), 16], slow=range(9, 16)))
def test_every_schedule(player: Path, ranks: int, tmp_path: Path) -> None:
    """Sums depend on the order of additions, and chunk counts do not divide the numbers of elements."""
    random = np.random.default_rng(ranks)
    operands = [(np.float32, 1009), (ml_dtypes.bfloat16, 333), (np.float32, 1)]
    for index, (name, make) in enumerate(CASES.items()):
        schedule = make(ranks)
        dtype, elements = operands[(ranks + index) % 3]
        x = (random.standard_normal((ranks, elements)) * 2.0 ** random.integers(0, 8)).astype(dtype)
        played = play(player, files_of(tmp_path, schedule), x)
        assert played.returncode == 0, (name, played.stderr)
        assert played.stdout == by_numpy(schedule, x).tobytes(), (name, dtype, elements)


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


def test_a_message_that_nobody_sends_ends_the_ranks(player: Path, tmp_path: Path) -> None:
    files = files_of(tmp_path, schedules.ring(3))
    files[1].write_bytes(without_a_round(files[1].read_bytes()))
    played = play(player, files, np.ones((3, 100), np.float32), seconds=1)
    assert played.returncode == 1 and b"no message has arrived" in played.stderr


def without_a_round(encoded: bytes) -> bytes:
    """A rank's encoded messages for a ring without the last round, which has one send and one receive."""
    words = [int.from_bytes(encoded[i : i + 4], "little") for i in range(0, len(encoded), 4)]
    words[6] -= 1
    return b"".join(word.to_bytes(4, "little") for word in words[: -3 - 2 - 3])
