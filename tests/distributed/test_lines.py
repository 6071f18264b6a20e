"""Output in lines, however it is cut, and progress bars once a second."""

from __future__ import annotations

import pytest

from jaxcomm.distributed.launch.supervise import Lines


def lines(*parts: bytes, apart_s: float = 0.0) -> list[str]:
    made = Lines()
    return [line for i, part in enumerate((*parts, b"")) for line in made.add(part, 10 + i * apart_s)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", []),
        (b"a\nb\n", ["a", "b"]),
        (b"a\n\nb", ["a", "", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        ("ä\n".encode(), ["ä"]),
        (b"\xff\n", ["�"]),
        (b"a\r", ["a"]),
        (b"\r10%\r20%\r100%\n", ["10%", "100%"]),
        (b"x" * 65537, ["x" * 65537]),
    ],
)
def test_text_is_split_into_the_same_lines_wherever_it_is_cut(text: bytes, expected: list[str]) -> None:
    assert lines(text) == expected
    if len(text) < 100:
        assert lines(*(text[i : i + 1] for i in range(len(text)))) == expected


def test_of_a_progress_bar_one_state_a_second_is_shown() -> None:
    states = [b"\r%d%%" % i for i in range(101)]
    assert lines(*states, b"\n", apart_s=0.1) == [*(f"{i}%" for i in range(0, 100, 10)), "100%"]


def test_a_line_without_an_end_is_not_kept_for_ever() -> None:
    made = Lines()
    assert made.add(b"x" * 70000, 0) == ["x" * 70000]
    assert made.add(b"y\n", 0) == ["y"]
