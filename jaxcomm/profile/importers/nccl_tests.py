"""Output of nccl-tests (and rccl-tests): the printed table of `all_reduce_perf` and similar programs, or -J JSON."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left, bisect_right
from typing import Any, NamedTuple, Self, get_args

from jaxcomm.errors import ProfileError
from jaxcomm.profile.fit import rounds_and_share
from jaxcomm.profile.importers import nccl_devices
from jaxcomm.profile.importers.nccl_choices import choices, fit_of_ring
from jaxcomm.profile.racks_and_rails import Sample
from jaxcomm.profile.schema import MAX_RANKS, Collective, OpName, Profile, Provenance

NAME = "nccl-tests output"
LOOKED_FOR = "a '# size count type … time algbw busbw' header, or JSON with 'nccl_version' and 'results'"

_OPS: dict[str, OpName] = {name.replace("_", ""): name for name in get_args(OpName)}
_HEADER = re.compile(r"(?:#|^)[ \t]*size\s.*?\b((?:cpu)?time\s+algbw\s+busbw\b.*)")
_TABLE = re.compile(rb"(?m)(?:#|^)[ \t]*size\s[^\n]*time\s+algbw\s+busbw\b")
_ROW = re.compile(r"\s*(\d{1,18})\s+\d+\s+[a-z]\w*\s+(.*)")
_PROGRAM = re.compile(r"\b([a-z_]+)_perf\b")
_VERSION = re.compile(r"nccl-tests version (\S{1,64})|NCCL version (\S{1,64})")


def sniff(data: bytes) -> bool:
    """Whether the bytes hold the header of nccl-tests' table, or the keys of its JSON."""
    if data.lstrip()[:1] == b"{":
        return b'"nccl_version"' in data and b'"results"' in data
    return _TABLE.search(data) is not None


def read(data: bytes, where: str, created: str) -> Profile:
    """The profile of the link that nccl-tests timed: α and β, and no arrivals.

    The out-of-place times are used, or the in-place times if the out-of-place times are missing. Sizes of 0 are
    skipped. If the log says which algorithm and protocol NCCL chose, α and β come from the sizes that ran as a ring
    (see `fit_of_ring`). If several hosts are listed, the profile may have a topology (see `nccl_devices.topology`).

    Args:
      data: the table or the JSON.
      where: the file's name.
      created: when the file was written.

    Returns:
      The profile. If an all_reduce was timed, `collective` is its largest size.

    Raises:
      ProfileError: no row, a row that cannot be read, several collectives in one file, processes that ran independently
        of each other, or an unknown number of ranks.
    """
    from_json = data.lstrip()[:1] == b"{"
    samples, ranks, hosts, op, versions = (_read_json if from_json else _read_table)(data, where)
    if not samples:
        header = _TABLE.search(data)
        line = f":{data.count(10, 0, header.start()) + 1}" if header else ""
        raise ProfileError(
            f"{where}{line}: holds no timed size{' below the header' if header else ''}.\n"
            "  Cure: run it to its end, with sizes above 0 (-b 8 -e 1G); rows are 'size count type … time algbw busbw'."
        )
    if not 2 <= ranks <= MAX_RANKS:
        raise ProfileError(
            f"{where}: {ranks} ranks took part; a link needs 2 to {MAX_RANKS}.\n  Cure: run it with -g 2 or more."
        )
    largest = max(samples, key=lambda sample: sample.bytes)
    taken = choices(data.decode("utf-8", errors="replace"))
    source = f"{where}: nccl-tests {op} on {ranks} ranks"
    hosts = hosts if len(hosts) == ranks and all(hosts) else ()
    topology = nccl_devices.topology(hosts)
    if topology:
        source += (
            f" of {len({*hosts})} hosts, timed together: a link within a host counts as no faster than one between"
        )
    return Profile(
        ranks=ranks,
        link=fit_of_ring(samples, taken, op, ranks, source),
        collective=Collective(bytes=largest.bytes, seconds=largest.seconds) if op == "all_reduce" else None,
        hosts=list(hosts),
        topology=topology,
        provenance=Provenance(source=where, tool="nccl-tests", versions=versions, created=created),
    )


def _read_table(data: bytes, where: str) -> tuple[list[Sample], int, tuple[str, ...], OpName, dict[str, str]]:
    text = data.decode("utf-8", errors="replace")
    samples: list[Sample] = []
    ratios: list[_Ratio] = []
    columns = 0
    lines = text.rstrip().split("\n")
    for number, line in enumerate(lines, start=1):
        if header := _HEADER.search(line):
            if header[1].startswith("cpu"):
                raise ProfileError(
                    f"{where}:{number}: the times are the CPU's, which end before the collective does.\n"
                    "  Cure: run nccl-tests without -C."
                )
            names = header[1].split()
            columns = len(names) + names.count("timestamp")  # a timestamp is printed as two words
            continue
        row = _ROW.fullmatch(line)
        if not (row and columns):
            continue
        # Columns are counted from the right, because the redop and root columns are blank for some collectives.
        words = row[2].split()[-columns:]
        if len(words) < columns and number == len(lines):
            continue  # the output ends within this row
        values = [_number(word) for word in words[:3]]
        if len(words) < columns or not all(0 <= value <= 1e15 for value in values):
            raise ProfileError(
                f"{where}:{number}: '{line.strip()[:80]}' does not hold the {columns} columns of the header.\n"
                "  Cure: delete the line, or run nccl-tests again."
            )
        if int(row[1]) > 0:
            samples.append(Sample(bytes=int(row[1]), seconds=values[0] / 1e6))
            ratios.append(_Ratio.of(*words[1:3]))
    op = _op_named(text, where)
    hosts = nccl_devices.listed(text, where)
    listed = len(hosts) or nccl_devices.laid_out(text)
    if op is None:
        op = _op_from_ratio(ratios, listed, where)
    ranks = _ranks(ratios, op, listed, where)
    versions = {"nccl" if nccl else "nccl-tests": tests or nccl for tests, nccl in _VERSION.findall(text)}
    return samples, ranks, hosts, op, versions


def _read_json(data: bytes, where: str) -> tuple[list[Sample], int, tuple[str, ...], OpName, dict[str, str]]:
    try:
        document = json.loads(data)
        hosts = nccl_devices.listed_in_json(document["config"])
        op = _op_named(str(document["args"][0]), where)
        if op is None:
            raise ValueError(f"args[0] names none of {', '.join(get_args(OpName))}")
        samples = [sample for row in document["results"] if (sample := _sample_of_json(row))]
        return samples, len(hosts), hosts, op, {"nccl": str(int(document["nccl_version"]))}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        if isinstance(error, ProfileError):
            raise
        problem = f"no {error}" if isinstance(error, KeyError) else str(error)[:200]
        raise ProfileError(
            f"{where}: cannot be read as nccl-tests' JSON: {problem}.\n  Cure: run nccl-tests -J to its end."
        ) from None


def _sample_of_json(row: dict[str, Any]) -> Sample | None:
    times = row["out_of_place"] or row["in_place"]
    size, microseconds = int(row["size"]), float(times["time"])
    if not (0 <= size <= 10**18 and 0 <= microseconds <= 1e15):
        raise ValueError(f"size {size} took {microseconds} µs")
    return Sample(bytes=size, seconds=microseconds / 1e6) if size else None


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan


class _Ratio(NamedTuple):
    """A row's bus bandwidth divided by its algorithm bandwidth: a range, because both bandwidths are rounded."""

    least: float
    most: float

    @classmethod
    def of(cls, algorithm: str, bus: str) -> Self:
        """The range of the ratio of two numbers that were rounded when they were printed."""
        (least, most), (least_bus, most_bus) = (
            (_number(word) - _half_digit(word), _number(word) + _half_digit(word)) for word in (algorithm, bus)
        )
        return cls(least_bus / most if most > 0 else 0.0, most_bus / least if least > 0 else math.inf)


def _half_digit(word: str) -> float:
    """Half a unit of the last printed digit."""
    return 0.5 * 10.0 ** -len(word.partition(".")[2]) if word.replace(".", "").isdigit() else 0.0


def _ranks(ratios: list[_Ratio], op: OpName, listed: int | None, where: str) -> int:
    """The number of listed ranks if it fits every row's bandwidths; otherwise the only number that fits the bandwidths.

    The list may be incomplete: a device's line may be missing, and programs under MPI may print no line. If no number
    fits the bandwidths, the number of listed ranks is returned.
    """
    least = max((ratio.least for ratio in ratios), default=0.0) * (1 - 1e-9)
    most = min((ratio.most for ratio in ratios), default=math.inf) * (1 + 1e-9)
    counts = range(2, MAX_RANKS + 1)  # the more ranks, the higher the ratio
    first = bisect_left(counts, least, key=lambda ranks: rounds_and_share(op, ranks)[1])
    fits = counts[first : bisect_right(counts, most, key=lambda ranks: rounds_and_share(op, ranks)[1])]
    if listed is not None and (listed in fits or not fits):
        return listed
    if len(fits) == 1:
        return fits[0]
    bandwidths = f"; the bandwidths may be those of {fits[0]} to {fits[-1]}" if ratios and fits else ""
    if listed is not None:
        raise ProfileError(
            f"{where}: lists {listed} ranks{bandwidths}.\n  Cure: keep all '# Rank' lines above the table."
        )
    raise ProfileError(
        f"{where}: has neither '# Rank  0 Group …' lines nor 'nThread 1 nGpus 8'; the ranks are unknown{bandwidths}.\n"
        "  Cure: keep the lines above the table, or give larger sizes, whose bandwidths have more digits."
    )


def _op_named(text: str, where: str) -> OpName | None:
    named = {_OPS[name.replace("_", "")] for name in _PROGRAM.findall(text) if name.replace("_", "") in _OPS}
    if len(named) > 1:
        raise ProfileError(
            f"{where}: times {' and '.join(sorted(named))}; one link is fitted to one collective.\n"
            "  Cure: keep each collective's output in a file of its own."
        )
    return named.pop() if named else None


def _op_from_ratio(ratios: list[_Ratio], ranks: int | None, where: str) -> OpName:
    """Identifies all_reduce in older tables, which name no program.

    The bus bandwidth is 2(n-1)/n times the algorithm bandwidth for all_reduce only.
    """
    if ratios and ratios[-1].least > 1 and (ranks is None or ranks > 2):  # the ratio of other collectives is at most 1
        return "all_reduce"
    raise ProfileError(
        f"{where}: does not say which collective was timed.\n  Cure: put the command above the table, "
        "for example '# all_reduce_perf'."
    )
