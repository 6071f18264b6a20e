"""The rail that small calls take by the round trips of connections, and up to which size."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from jaxcomm.distributed.rails.lowest_latency_rail import (
    LowestLatencyRail,
    lowest_latency_rail,
    round_trip_s,
    with_range_for_small_calls,
)
from jaxcomm.ffi.shares import UNITS, in_units

US = 1e-6


def round_trips(*by_process: Mapping[str, float]) -> dict[tuple[int, str], float]:
    return {(process, name): us * US for process, each in enumerate(by_process) for name, us in each.items()}


@pytest.mark.parametrize(
    ("by_process", "expected"),
    [
        ([{"a": 500, "b": 50}], ("b", 450)),
        ([{"a": 50, "b": 500}], None),  # the first is ahead
        ([{"a": 100, "b": 50}], None),  # no less than half
        ([{"a": 30, "b": 11}], None),  # no 20 µs
        ([{"a": 31, "b": 11}], ("b", 20)),
        ([{"a": 500, "b": 100, "c": 90}], ("c", 410)),
        ([{"a": 500, "b": 50}, {"a": 400, "b": 45}, {"a": 40, "b": 900}], ("b", 350)),  # medians: 400 and 50
        ([{"a": 500, "b": 50}, {"a": 45, "b": 45}, {"a": 40, "b": 45}], None),  # one slow way is not all
        ([{"a": 500, "b": 50}, {"a": 500}], None),  # does not lead there, or is not known
        ([{"b": 50}], None),  # the first is not known
        ([{"a": 500}], None),
        ([{}], None),
        ([], None),
    ],
)
def test_a_rail_takes_small_calls_if_its_round_trip_is_clearly_less(
    by_process: Sequence[Mapping[str, float]], expected: tuple[str, float] | None
) -> None:
    found = lowest_latency_rail(dict.fromkeys(range(len(by_process)), "a"), round_trips(*by_process))
    assert found == (expected and (expected[0], pytest.approx(expected[1] * US)))


def test_processes_with_other_first_rails_get_one() -> None:
    measured = round_trips({"a": 500, "b": 50}, {"a": 600, "b": 50}, {"a": 700, "b": 50})
    assert lowest_latency_rail({0: "a", 1: "b", 2: "a"}, measured) == ("b", pytest.approx(450 * US))


@pytest.mark.parametrize(
    ("rates", "gain_us", "threshold"),
    [
        ({"a": 500, "b": 125}, 960, 10_000),  # 480 µs on the way, and 48 ns more for a byte
        ({"a": 25_000, "b": 10_000}, 40, 41_667),
        ({"a": 25_000, "b": 20_000}, 400, 128 << 10),  # what is longer has several segments
        ({"a": 99, "b": 1}, 20, 1),  # notices alone
    ],
)
def test_a_slower_rail_takes_calls_as_long_as_it_is_ahead(
    rates: Mapping[str, int], gain_us: float, threshold: int
) -> None:
    shares = dict(zip(rates, in_units([*rates.values()]), strict=True))
    found = with_range_for_small_calls(shares, rates, LowestLatencyRail("b", gain_us * US))
    assert [tuple(each) for each in found] == [(0, {"a": 0, "b": UNITS}), (threshold, shares)]


@pytest.mark.parametrize("count", [2, 3, 6, 64])
def test_of_rails_of_one_rate_it_is_the_first_of_large_calls_too(count: int) -> None:
    names = [f"eth{i}" for i in range(count)]
    shares = dict(zip(names, in_units([1] * count), strict=True))
    first = max(shares, key=shares.__getitem__)
    for cold in names:
        found = with_range_for_small_calls(shares, dict.fromkeys(names, 1), LowestLatencyRail(cold, 1e-3))
        if cold == first:
            assert found == [(0, shares)]
            continue
        (low, alone), (high, split) = found
        assert (low, high) == (0, 128 << 10)
        assert alone == {name: UNITS * (name == cold) for name in names}
        assert max(split, key=split.__getitem__) == cold and sum(split.values()) == UNITS
        assert [name for name in names if split[name] != shares[name]] == [n for n in names if n in (cold, first)]


def test_shares_that_are_rounded_do_not_hide_that_rates_are_alike() -> None:
    rates = {"a": 10_001, "b": 10_000, "c": 10_000}
    shares = dict(zip(rates, in_units([*rates.values()]), strict=True))
    assert max(shares, key=shares.__getitem__) == "b"  # though a is faster
    assert [each.min_bytes for each in with_range_for_small_calls(shares, rates, LowestLatencyRail("c", 1e-3))] == [
        0,
        128 << 10,
    ]


def test_from_the_threshold_on_messages_have_two_segments() -> None:
    header = (Path(__file__).parents[2] / "cc/executor/sites/segment_bytes.h").read_text()
    [kib] = re.findall(r"kShortestSegment = (\d+) << 10;", header)
    (_, (threshold, _)) = with_range_for_small_calls(
        {"a": 513, "b": 511}, {"a": 1, "b": 1}, LowestLatencyRail("b", 1e-3)
    )
    assert threshold == 2 * int(kib) << 10


def test_the_kernel_says_the_round_trip_of_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        with other:
            one.sendall(b"x")
            assert other.recv(1) == b"x"
            for each in (one, other):
                found = round_trip_s(each)
                assert found is not None and 0 < found < 60


def test_without_a_connection_or_tcp_there_is_no_round_trip() -> None:
    with socket.socket() as unconnected, socket.socket(type=socket.SOCK_DGRAM) as udp:
        assert round_trip_s(unconnected) is None and round_trip_s(udp) is None
