"""Argument types of the commands: sizes, ranges of ranks, rates, rails, uplinks, NICs, late ranks.

Each error names the bad word and shows a valid one.
"""

from __future__ import annotations

import itertools
import math
import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

_UNITS = {"": 1, "B": 1} | {
    f"{prefix}{suffix}": base**power
    for suffix, base in (("B", 10**3), ("IB", 2**10))
    for power, prefix in enumerate("KMGTPE", 1)
}
_MOST_BYTES = 2**40
_MOST_COUNT = 65536
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_SIZE_STEP = 4


class Late(NamedTuple):
    """A rank, and the seconds by which it is made late."""

    rank: int
    seconds: float


class PartRate(NamedTuple):
    """A rail or a rack's uplink, and the factor by which its rate changes."""

    name: str
    rate: Fraction


class RailTransport(NamedTuple):
    """A separate network that all ranks share, and its transport."""

    name: str
    transport: str


class NicRate(NamedTuple):
    """A rank, and the factor by which the rate of its NIC changes."""

    rank: int
    rate: Fraction


def size(text: str) -> int:
    """The number of bytes of a size such as `64KiB`, `16MiB` or `1000`."""
    match = _SIZE.fullmatch(text.strip())
    found = float(match[1]) * _UNITS.get(match[2].upper(), 0) if match else 0.0
    if found > _MOST_BYTES:
        raise ArgumentTypeError(f"{text!r} is too large; sizes go to 1TiB")
    if found < 1:
        raise ArgumentTypeError(f"{text!r} is not a size; write for example 64KiB or 16MiB")
    return int(found)


def sizes(text: str) -> list[int]:
    """The bytes of each size in a list. `1KiB..1GiB` stands for the sizes from 1 KiB to 1 GiB in steps of 4x."""
    found: list[int] = []
    for word in text.split(","):
        first, dots, last = word.partition("..")
        low, high = size(first), size(last if dots else first)
        if high < low:
            raise ArgumentTypeError(f"{word!r} runs backwards; write the smaller size first")
        while low < high:
            found.append(low)
            low *= _SIZE_STEP
        found.append(high)
    return found


def whole(low: int, high: int) -> Callable[[str], int]:
    """The type of an option that takes a whole number, from `low` to `high`."""

    def parse(text: str) -> int:
        word = text.strip()
        if not re.fullmatch(r"-?\d{1,30}", word, re.ASCII) or not low <= int(word) <= high:
            raise ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return int(word)

    return parse


def number(low: float, high: float) -> Callable[[str], float]:
    """The type of an option that takes a number, from `low` to `high`."""

    def parse(text: str) -> float:
        found = _number(text)
        if not low <= found <= high:
            raise ArgumentTypeError(f"{text!r} is not a number from {low:g} to {high:g}")
        return found

    return parse


def seconds(text: str) -> float:
    """A time above 0, at most a day."""
    found = _number(text)
    if not 0 < found <= 86400:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds above 0, at most 86400; write for example 20")
    return found


def slowness(text: str) -> float:
    """The transfer time per byte between hosts or racks, divided by that within a host or rack; at least 1."""
    found = _number(text)
    if not 1 <= found <= 1e6:
        raise ArgumentTypeError(f"{text!r} is not a factor from 1 to 1e6; write for example 4")
    return found


def words(text: str) -> list[str]:
    """The words of a list such as `node2,node3`."""
    found = [word.strip() for word in text.split(",")]
    if not all(found):
        raise ArgumentTypeError(f"{text!r} has an empty word; write for example first,second")
    return found


def counts(text: str) -> list[int]:
    """The positive integers in a list such as `2..32,64,128`."""
    found = numbers(text)
    if 0 in found:
        raise ArgumentTypeError(f"{text!r} has a 0; write for example 2..32,64")
    return found


def numbers(text: str) -> list[int]:
    """The integers from 0 in a list such as `0..3,7`."""
    found: list[int] = []
    for word in text.split(","):
        first, dots, last = word.partition("..")
        if not first.isdecimal() or (dots and not last.isdecimal()):
            raise ArgumentTypeError(f"{word!r} is not a number or a range; write for example 2..32,64")
        if int(last if dots else first) > _MOST_COUNT:
            raise ArgumentTypeError(f"{word!r} goes beyond {_MOST_COUNT}; write for example 2..32,64")
        found.extend(range(int(first), int(last if dots else first) + 1))
    if not found:
        raise ArgumentTypeError(f"{text!r} names no number; write for example 2..32,64")
    return found


def milliseconds(text: str) -> list[float]:
    """The seconds in a list of milliseconds such as `0,5,20`."""
    try:
        found = [float(word) / 1e3 for word in text.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= seconds < float("inf") for seconds in found):
        raise ArgumentTypeError(f"{text!r} is not a list of milliseconds; write for example 0,5,20")
    return found


def fraction(text: str) -> float:
    """A share of one, written `2%` or `0.02`."""
    word = text.strip()
    try:
        found = float(word[:-1]) / 100 if word.endswith("%") else float(word)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1:
        raise ArgumentTypeError(f"{text!r} is not a share between 0 and 1; write for example 2% or 0.02")
    return found


def fractions(text: str) -> list[float]:
    """Ascending shares above 0, written `1%,5%,10%`."""
    found = [fraction(word) for word in text.split(",")]
    if not found[0] or any(low >= high for low, high in itertools.pairwise(found)):
        raise ArgumentTypeError(f"{text!r} is not a list of ascending shares above 0; write for example 1%,5%,10%")
    return found


def hosts(text: str) -> tuple[int, ...]:
    """The host of every rank, from the number of ranks on each host, such as `4+4`."""
    words = text.split("+")
    if not all(word.strip().isdigit() and int(word) for word in words) or sum(map(int, words)) > 65536:
        raise ArgumentTypeError(f"{text!r} does not say how many ranks each host has; write for example 4+4")
    return tuple(host for host, word in enumerate(words) for _ in range(int(word)))


def rate(text: str) -> Fraction:
    """A positive ratio, written `1/4`, `0.25` or `2`."""
    try:
        found = Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        found = Fraction(0)
    if not 1e-9 <= found <= 1e9:
        raise ArgumentTypeError(f"{text!r} is not a rate; write for example 1/4 or 0.25")
    return found


def rail_rate(text: str) -> PartRate:
    """A rail's rate, written `eth1=1/4`."""
    return _part_rate(text, "a rail", "eth1=1/4")


def uplink_rate(text: str) -> PartRate:
    """The rate of a rack's uplink, written `rack 0=1/4`."""
    return _part_rate(text, "a rack", "'rack 0=1/4'")


def rail(text: str) -> RailTransport:
    """A rail and its transport, written `eth1=tcp`."""
    name, _, transport = text.partition("=")
    if not (0 < len(name) <= 256 and 0 < len(transport) <= 256):
        raise ArgumentTypeError(f"{text!r} is not a rail and its transport; write for example eth1=tcp")
    return RailTransport(name, transport)


def nic_rate(text: str) -> NicRate:
    """The rate of a rank's NIC, written `3=1/4`."""
    rank, ratio = _part_rate(text, "a rank", "3=1/4")
    if not (rank.isdecimal() and len(rank) < 10):
        raise ArgumentTypeError(f"{text!r} is not a rank and its rate; write for example 3=1/4")
    return NicRate(int(rank), ratio)


def _part_rate(text: str, quantity: str, example: str) -> PartRate:
    name, equals, ratio = text.rpartition("=")
    if not (name and equals):
        raise ArgumentTypeError(f"{text!r} is not {quantity} and its rate; write for example {example}")
    return PartRate(name, rate(ratio))


def late(text: str) -> Late:
    """A late rank, written `rank=3,ms=20`."""
    match = re.fullmatch(r"rank=(\d+),ms=(\d+(?:\.\d+)?)", text.replace(" ", ""))
    if match is None or not float(match[2]):
        raise ArgumentTypeError(f"{text!r} is not a late rank; write for example rank=3,ms=20")
    return Late(int(match[1]), float(match[2]) / 1e3)


def _number(text: str) -> float:
    """The number in the text, or NaN if the text is not a number; no range contains NaN."""
    try:
        return float(text)
    except ValueError:
        return math.nan
