"""The page of constants has the values of its files, and all of those files that are complete."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "constants.md"
UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "%": 0.01, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
DURATIONS = {"seconds": 1.0, "milliseconds": 1e-3, "microseconds": 1e-6}

# Files whose constants are all on the page, but for those that only bound the work of a search.
COMPLETE = [
    *sorted((ROOT / "jaxcomm" / "auto_plan").glob("*.py")),
    *sorted((ROOT / "jaxcomm" / "planner").glob("*.py")),
    *sorted((ROOT / "jaxcomm" / "planner" / "schedules").glob("*.py")),
    *sorted((ROOT / "jaxcomm" / "planner" / "rails").glob("*.py")),
    *(ROOT / "jaxcomm" / name for name in ("planner/drops/policy.py", "simulate/incast.py")),
    *(ROOT / "jaxcomm" / "simulate" / f"{name}.py" for name in ("executor_costs", "between_hosts", "turns")),
    *(ROOT / "jaxcomm" / "profile" / f"{name}.py" for name in ("lateness", "fit", "find_racks")),
    *(ROOT / "jaxcomm" / "train" / f"{name}.py" for name in ("group_network", "adjustment")),
    *(
        ROOT / "cc" / "executor" / name
        for name in ("decide/comparison.cc", "decide/trial.h", "decide/trial.cc", "sites/segment_bytes.h")
    ),
    *(ROOT / "cc" / "transport" / "rails" / name for name in ("silent_rails.h", "balance.h")),
]
WORK = {
    "jaxcomm/auto_plan/agreement.py": "_POLL_S",
    "jaxcomm/auto_plan/auto_plan.py": "_FOLLOW_S",
    "jaxcomm/auto_plan/latest_calls.py": "_KEPT",
    "jaxcomm/auto_plan/planning.py": "_POLL_S",
    "jaxcomm/auto_plan/running.py": "_MEASUREMENTS _OF_FEWER",
    "jaxcomm/planner/rails/search.py": "STEPS FINEST",
    "jaxcomm/planner/rails/split.py": "TIE SLICE SLICES",
    "jaxcomm/planner/schedules/bound.py": "PRECISION",
    "jaxcomm/planner/schedules/network_search.py": "STARTS MOST_TRIES WORK_PER_SECOND",
    "jaxcomm/planner/schedules/on_hosts.py": "UNLIKE FEW",
    "jaxcomm/planner/schedules/ranges.py": "STEPS LEAST_JUMP",
    "jaxcomm/planner/schedules/selectors.py": "PARTS",
    "jaxcomm/profile/fit.py": "LEAST_S LEAST_TURN",
    "jaxcomm/simulate/between_hosts.py": "TINY_S",
    "jaxcomm/train/group_network.py": "SLOWEST",
}


class Row(NamedTuple):
    """A constant on the page."""

    name: str
    value: float
    file: str


def rows() -> Iterator[Row]:
    for line in PAGE.read_text().splitlines():
        if not line.startswith("| `"):
            continue
        names, values, _, files = (
            [each.strip() for each in cell.split(", ")] for cell in line.strip("| ").split(" | ")
        )
        names, files = ([each.strip("`") for each in cells] for cells in (names, files))
        count = max(len(names), len(files))
        columns = [cells * (count if len(cells) == 1 else 1) for cells in (names, values, files)]
        for name, value, file in zip(*columns, strict=True):
            number, *unit = value.split()
            yield Row(name, float(number) * (UNITS[unit[0]] if unit else 1.0), file)


def python_constants(file: Path) -> dict[str, float]:
    """The numbers that a module gives names in capitals, several in one statement too; others are left out."""
    found: dict[str, object] = {}
    for node in ast.parse(file.read_text()).body:
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if target is None or (value := node.value) is None:
            continue
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        values = value.elts if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) else [value]
        for name, each in zip(names, values, strict=True):
            if isinstance(name, ast.Name) and re.fullmatch(r"_?[A-Z][A-Z0-9_]*", name.id):
                try:
                    found[name.id] = eval(ast.unparse(each), {"round": round}, found)
                except (NameError, SyntaxError, TypeError):
                    continue
    return {name: float(each) for name, each in found.items() if isinstance(each, int | float)}


def cpp_constants(file: Path) -> dict[str, float]:
    """The numbers and durations, in seconds, of a file's `constexpr`s."""
    found: dict[str, float] = {}
    kind = r"constexpr (?:std::chrono::(\w+)|[\w:]+) "
    for duration, declared in re.findall(kind + r"(k\w+(?: = |[{(])[^;]*);", file.read_text()):
        for name, value in re.findall(r"(k\w+)(?: = |[{(])((?:\w+\{\d+\}|[^,{}()])+)", declared):
            plain = re.sub(r"\w+\{(\d+)\}", r"\1", value)
            if re.fullmatch(r"[\d.<*/ e+-]+", plain):
                found[name] = eval(plain) * DURATIONS.get(duration, 1.0)
    return found


def constants(file: Path) -> dict[str, float]:
    return python_constants(file) if file.suffix == ".py" else cpp_constants(file)


@pytest.mark.parametrize("row", [*rows()], ids=lambda row: f"{row.name} of {row.file}")
def test_a_constant_on_the_page_has_its_files_value(row: Row) -> None:
    found = constants(ROOT / row.file)
    assert row.name in found
    assert row.value == pytest.approx(found[row.name], rel=0.02)


@pytest.mark.parametrize("file", COMPLETE, ids=lambda file: str(file.relative_to(ROOT)))
def test_the_page_leaves_out_no_number_of_these_files(file: Path) -> None:
    name = str(file.relative_to(ROOT))
    listed, work = {row.name for row in rows() if row.file == name}, {*WORK.get(name, "").split()}
    found = constants(file).keys()
    assert found - work == listed & found
    assert work <= found, "constants that are gone"
