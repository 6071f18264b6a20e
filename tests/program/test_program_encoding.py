"""Program bytes follow the documented encoding. Damaged bytes are refused with the index of the word."""

from __future__ import annotations

import random
import struct

import pytest

from jaxcomm import schedules
from jaxcomm.errors import PlanError
from jaxcomm.program.program import MAGIC, Program, ProgramOp, compile


def words(data: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def packed(numbers: list[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


SMALL = words(compile(schedules.straggler(3, 0, 2)))


def test_the_encoding_is_the_documented_one() -> None:
    data = Program(3, 2, (ProgramOp(2, 1, (0, 2), (1,), ()), ProgramOp(0, 1, (1,), (0, 2), (0,)))).encode()
    assert data[:4] == b"JCPG"
    assert words(data) == [MAGIC, 1, 3, 2, 2, *(2, 1, 2, 1, 0, 0, 2, 1), *(0, 1, 1, 2, 1, 1, 0, 2, 0)]


@pytest.mark.parametrize("length", range(len(SMALL)))
def test_a_truncated_program_is_refused(length: int) -> None:
    with pytest.raises(PlanError, match=r"program: word \d+: .*\n  Cure"):
        Program.decode(packed(SMALL[:length]))


@pytest.mark.parametrize(
    ("at", "word", "message"),
    [
        (0, 7, "word 0: the magic number is 7, which must be 1196442442"),
        (1, 2, "word 1: the version is 2, which must be 1"),
        (2, 0, r"word 2: the number of ranks is 0, which must be in \[1, 4096\]"),
        (2, 2**32 - 1, "word 2: the number of ranks is 4294967295"),
        (3, 2**30, r"word 3: the number of chunks is 1073741824, which must be in \[1, 16777216\]"),
        (4, 2**31, "word 4: the number of operations is 2147483648"),
        (5, 3, r"word 5: rank is 3, which must be in \[0, 2\]"),
        (6, 2, r"word 6: chunk is 2, which must be in \[0, 1\]"),
        (7, 0, r"word 7: the number of reads is 0, which must be in \[1, 3\]"),
        (8, 4, r"word 8: the number of writes is 4, which must be in \[1, 3\]"),
        (9, 1, "word 9: the number of waits is 1, which must be 0"),
        (11, 1, r"word 11: a rank to read is 1, which must be 2"),
        (12, 9, r"word 12: a rank to write is 9, which must be in \[0, 2\]"),
    ],
)
def test_a_word_out_of_bounds_is_named(at: int, word: int, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Program.decode(packed([*SMALL[:at], word, *SMALL[at + 1 :]]))


def test_bytes_after_the_end_are_refused() -> None:
    with pytest.raises(PlanError, match="1 words follow the last operation"):
        Program.decode(packed([*SMALL, 0]))
    with pytest.raises(PlanError, match="are not whole 32-bit words"):
        Program.decode(packed(SMALL) + b"x")


def test_random_damage_gives_a_plan_error_or_another_program() -> None:
    dice = random.Random(5)
    refused = 0
    for _ in range(2000):
        damaged = list(SMALL)
        damaged[dice.randrange(len(damaged))] = dice.choice([0, 1, 2, 3, 7, 2**31, 2**32 - 1])
        try:
            assert Program.decode(packed(damaged)).encode() == packed(damaged)
        except PlanError:
            refused += 1
    assert refused > 500
