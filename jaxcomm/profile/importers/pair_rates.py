"""Rates between ranks or hosts, measured pair by pair: from p2pBandwidthLatencyTest, nvbandwidth, or by hand.

A matrix has a title with a unit, a line of names, and a line for each name. A cell without a number was not measured:

    bandwidth (Gbit/s)
             a     b     c
    a        -  9.41  9.38
    b     9.40     -  9.41
    c     9.40  9.39     -
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any, Final, NamedTuple

import numpy as np

from jaxcomm.errors import ProfileError
from jaxcomm.profile.files import validate
from jaxcomm.profile.find_racks import Floats, find_racks
from jaxcomm.profile.fit import ASSUMED_ALPHA_S
from jaxcomm.profile.schema import FORMAT, VERSION, Profile, Provenance

NAME: Final = "rates of pairs"
LOOKED_FOR: Final = "a line with 'bandwidth' and '(GB/s)' or '(Gbit/s)', and below it a matrix"
MAX_NAMES: Final = 512

_UNITS: Final = {"GB/s": 1e9, "MB/s": 1e6, "Gbit/s": 1.25e8, "Gb/s": 1.25e8, "Mbit/s": 1.25e5, "us": 1e-6, "ns": 1e-9}
_TITLE = re.compile(r"(?i)(?=.*\b(?:bandwidth|latency)\b).{0,200}\((GB/s|MB/s|Gbit/s|Gb/s|Mbit/s|us|ns)\)[ \t:]*")
_RATES = re.compile(
    rb"(?im)^[^\n]{0,200}\bbandwidth\b[^\n]{0,200}\((?:GB/s|MB/s|Gbit/s|Gb/s|Mbit/s)\)[ \t:\r]*$"
)  # the title of a matrix of bandwidths
_CORNER: Final = ("D\\D", "GPU")  # words that may precede the names in their line


class _Matrix(NamedTuple):
    """One matrix of rates in bytes per second, or of latencies in seconds; NaN where nothing was measured."""

    latency: bool
    names: tuple[str, ...]
    values: Floats


def sniff(data: bytes) -> bool:
    """Whether the bytes contain the title of a matrix of bandwidths."""
    return _RATES.search(data) is not None


def read(data: bytes, where: str, created: str) -> Profile:
    """The profile of the measured ranks, with the racks and slow NICs that `find_racks` finds, and with uplinks.

    With several matrices of the same ranks, each pair's best value counts. If a matrix is for both directions together,
    half of each rate counts. A matrix of latencies gives α. The file does not show how links slow down when all ranks
    are busy.

    Args:
      data: the file's bytes.
      where: the file's name.
      created: when the file was written.

    Returns:
      The profile of one rank per name. The names become the names of hosts, unless all names are numbers.

    Raises:
      ProfileError: no complete matrix, two matrices of different ranks, a rate of 0, or too many names.
    """
    found = [*_matrices(data.decode("utf-8", errors="replace"), where)]
    matrices = [matrix for matrix in found if not matrix.latency]
    if not matrices:
        raise ProfileError(
            f"{where}:{_first_title(data)}: no complete matrix of rates is below this title, or another.\n"
            "  Cure: give a line of names and, below it, a line for each that begins with its name."
        )
    names = matrices[0].names
    other = next((matrix for matrix in matrices if matrix.names != names), None)
    if other:
        raise ProfileError(
            f"{where}: has matrices of {len(names)} and of {len(other.names)} ranks whose names differ.\n"
            "  Cure: keep those of one set of ranks."
        )
    with np.errstate(invalid="ignore"):
        seconds = 1 / np.fmax.reduce([matrix.values for matrix in matrices])
        seconds = np.fmax(seconds, seconds.T)  # the slower direction determines the time of an exchange
    np.fill_diagonal(seconds, np.nan)
    if not np.isfinite(seconds).any(axis=1).all():
        alone = names[int(np.isfinite(seconds).any(axis=1).argmin())]
        raise ProfileError(f"{where}: {alone[:40]!r} was measured with no other.\n  Cure: leave it out, or measure it.")
    latencies = [matrix.values for matrix in found if matrix.latency and matrix.names == names]
    return validate(_described(names, seconds, latencies, where, created), where)


def _first_title(data: bytes) -> int:
    """The line number of the first title of a matrix of bandwidths."""
    found = _RATES.search(data)
    return data.count(b"\n", 0, found.start()) + 1 if found else 1


def _described(
    names: tuple[str, ...], seconds: Floats, latencies: list[Floats], where: str, created: str
) -> dict[str, Any]:
    racks, nics = find_racks(seconds)
    home = {member: i for i, rack in enumerate(racks) for member in rack}
    pairs = [pair for pair in combinations(range(len(names)), 2) if np.isfinite(seconds[pair])]
    near = [(a, b) for a, b in pairs if home[a] == home[b] and nics[a] == nics[b] == 1] or pairs
    within = float(np.mean([seconds[pair] for pair in near]))
    alpha, assumed, how = ASSUMED_ALPHA_S, True, f"α assumed {ASSUMED_ALPHA_S * 1e6:g} µs"
    if latencies and not np.isnan(least := [np.fmin.reduce(latencies)[pair] for pair in near]).all():
        alpha, assumed, how = float(np.nanmedian(least)), False, "α the median of the latencies there"
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "ranks": len(names),
        "link": {
            "alpha_s": alpha,
            "beta_s_per_byte": within,
            "alpha_assumed": assumed,
            "source": f"{where}: rates of {len(pairs)} pairs, one at a time; β the mean within a rack, {how}"[:4096],
            "op": "send_recv",
        },
        "provenance": Provenance(source=where, tool=NAME, created=created).model_dump(),
    }
    if not all(name.isdecimal() for name in names):
        document["hosts"] = [*names]
    if len(racks) > 1:
        document["racks"] = [
            {"name": f"rack {i}", "ranks": [*rack], "uplink": _uplink(seconds, rack, within)}
            for i, rack in enumerate(racks)
        ]
    if max(nics) > 1:
        document["nics"] = [_ratio(nic) for nic in nics]
    return document


def _uplink(seconds: Floats, rack: tuple[int, ...], within: float) -> float:
    """The time of a byte to the nearest rank of another rack, divided by `within`, the time within a rack."""
    outside = np.delete(seconds[[*rack]], rack, axis=1)
    return _ratio(float(np.nanmin(outside)) / within) if np.isfinite(outside).any() else 1.0


def _ratio(value: float) -> float:
    return float(np.clip(float(f"{value:.3g}"), 1.0, 1e6))


def _matrices(text: str, where: str) -> Iterator[_Matrix]:
    """The complete square matrices, each below its title."""
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        if (title := _TITLE.fullmatch(line)) is None or number == len(lines):
            continue
        names = lines[number].split()
        names = names[1:] if names[:1] and names[0] in _CORNER else names
        if len(names) > MAX_NAMES:
            raise ProfileError(
                f"{where}:{number + 1}: names {len(names)} ranks; at most {MAX_NAMES} may be.\n  Cure: measure hosts."
            )
        rows = [row.split() for row in lines[number + 1 : number + 1 + len(names)]]
        if len(names) < 2 or len({*names}) < len(names) or [row[:1] for row in rows] != [[name] for name in names]:
            continue
        unit = next(unit for unit in _UNITS if unit.lower() == title[1].lower())
        both = re.search("(?i)bidirectional|total", line) is not None
        values = np.full((len(names), len(names)), np.nan)
        for a, row in enumerate(rows):
            if len(row) != len(names) + 1:
                raise ProfileError(
                    f"{where}:{number + 2 + a}: has {len(row) - 1} values for {len(names)} names.\n"
                    "  Cure: write - where nothing was measured."
                )
            for b, word in enumerate(row[1:]):
                if a != b:
                    values[a, b] = _value(word, _UNITS[unit] / (2 if both else 1), f"{where}:{number + 2 + a}")
        yield _Matrix(unit in ("us", "ns"), tuple(names), values)


def _value(word: str, unit: float, where: str) -> float:
    """The value in bytes per second, or seconds; NaN for a word that is not a number."""
    try:
        value = float(word) * unit
    except ValueError:
        return np.nan
    if np.isnan(value):
        return np.nan
    if not 1e-9 <= value <= 1e15:
        raise ProfileError(f"{where}: {word[:40]} is not a rate.\n  Cure: mend it, or write - if it was not measured.")
    return value
