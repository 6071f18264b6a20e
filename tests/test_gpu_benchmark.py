"""benchmarks/gpu.py without a GPU: what it starts and ends, what it reports, and that its sections find a wrong bit."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
gpu = importlib.import_module("gpu")
gpu_devices = importlib.import_module("gpu_devices")
gpu_kernels = importlib.import_module("gpu_kernels")
gpu_sections = importlib.import_module("gpu_sections")


def test_the_dry_run_names_every_section_and_starts_none(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks/gpu.py"), "--dry-run", "--out", str(tmp_path / "gpu.md")]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert [line.split(":")[0] for line in said.splitlines()] == list(gpu.ALL)
    assert all(": would " in line for line in said.splitlines())
    assert not (tmp_path / "gpu.md").exists()


def test_the_sections_exist_and_all_of_them_fit_into_ten_minutes() -> None:
    assert gpu.BUDGET < 600
    named = {section.arguments[0] for section in gpu.ALL.values() if section.script == "gpu_sections.py"}
    assert named == set(gpu_sections.SECTIONS)
    for section in gpu.ALL.values():
        assert section.script == "gpu_nccl.py" or (ROOT / "benchmarks" / section.script).exists()


def test_one_gpu_needs_jax_and_numpy_alone() -> None:
    """A machine that is lent for ten minutes may have no more of what jaxcomm depends on."""
    others = ["absl", "matplotlib", "optax", "ortools", "pydantic", "scipy", "tqdm"]
    script = (
        f"import sys; sys.modules |= dict.fromkeys({others})\nimport gpu_build, gpu_kernels, gpu_rows, gpu_sections"
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks"), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120, env=environment, cwd=ROOT)


# What a section can come to: its script, the state in the report, and its rows.
ENDS = {
    "passes": ("tell([['what'], ['this']])", "passed", [["what"], ["this"]]),
    "misses": ("tell([['what', ''], ['time', 'miss']])", "passed, 1 targets missed", [["what", ""], ["time", "miss"]]),
    "fails": ("tell([['what'], ['this']]); sys.exit('tired')", "failed with 1", [["what"], ["this"], ["tired"]]),
    "crashes": ("tell([['what'], ['this']]); os.abort()", "failed with -6", [["what"], ["this"]]),
    "hangs": (
        "tell([['what'], ['this']]); print('waiting', flush=True); subprocess.run(['sleep', '600'])",
        "stopped after 3 s",
        [["what"], ["this"], ["waiting"]],
    ),
    "says nothing": ("pass", "passed", []),
}
HEAD = """
import json, os, subprocess, sys
def tell(rows):
    with open(sys.argv[-1], "w") as file:
        json.dump({"rows": rows, "device": os.environ["DEVICE"]}, file)
"""


@pytest.fixture
def only_these(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[dict[str, str]], None]:
    """Replaces all sections by these scripts."""

    def replace(scripts: dict[str, str]) -> None:
        monkeypatch.setattr(gpu, "HERE", tmp_path)
        monkeypatch.setattr(gpu, "why_off", lambda: None)
        for name, body in scripts.items():
            (tmp_path / f"{name}.py").write_text(HEAD + body)
        alike = {
            name: gpu.Section(name.title(), 3 if name == "hangs" else 60, f"{name}.py", ("an argument",), (), DEVICE)
            for name in scripts
        }
        monkeypatch.setattr(gpu, "ALL", alike)

    return replace


DEVICE = {"DEVICE": "GPU X"}


def test_whatever_ends_a_section_is_a_row_and_the_next_one_runs(
    only_these: Callable[[dict[str, str]], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    only_these({name: body for name, (body, _, _) in ENDS.items()})
    out = tmp_path / "gpu.md"
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 1
    text = out.read_text()
    assert "` on GPU X, 20" in text
    sections = dict(zip(ENDS, text.split("\n## ")[1:], strict=True))
    for name, (_, state, rows) in ENDS.items():
        assert f"\n{name}: {state}, " in sections[name]
        head, *rest = [f"| {' | '.join(row)} |" for row in rows] or [""]
        assert head in sections[name] and all(row in sections[name] for row in rest)


def test_misses_alone_do_not_fail_the_command(
    only_these: Callable[[dict[str, str]], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    only_these({name: ENDS[name][0] for name in ("passes", "misses")})
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path / "gpu.md")])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 0


def test_a_section_that_is_stopped_leaves_no_process(
    only_these: Callable[[dict[str, str]], None], tmp_path: Path
) -> None:
    child = f"pid = subprocess.Popen(['sleep', '600']).pid; open({str(tmp_path / 'pid')!r}, 'w').write(str(pid))\n"
    only_these({"hangs": f"{child}import time; time.sleep(600)"})
    assert gpu.run("hangs", 600)["state"] == "stopped after 3 s"
    stat = Path("/proc", (tmp_path / "pid").read_text(), "stat")
    end = time.monotonic() + 10
    while stat.exists() and stat.read_text().split(")")[1].split()[0] != "Z" and time.monotonic() < end:
        time.sleep(0.05)
    assert not stat.exists() or stat.read_text().split(")")[1].split()[0] == "Z"


def test_what_cannot_run_here_is_left_out_and_says_why(
    only_these: Callable[[dict[str, str]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    only_these({"passes": ENDS["passes"][0]})
    monkeypatch.setitem(gpu.ALL, "absent", gpu.Section("A script", 9, "absent.py", ()))
    monkeypatch.setitem(gpu.ALL, "wrapped", gpu.Section("A tool", 9, "passes.py", (), ("no-such-tool",)))
    assert gpu.run("absent", 600)["state"] == "left out: benchmarks/absent.py is not here"
    assert gpu.run("wrapped", 600)["state"] == "left out: no-such-tool is not installed"
    assert gpu.run("passes", 5)["state"] == "left out: the 590 s of all sections were over"


def test_nccl_is_a_section_wherever_its_script_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    assert gpu.run("nccl", 600)["state"] == "left out: benchmarks/gpu_nccl.py is not here"
    (tmp_path / "gpu_nccl.py").write_text(
        "import json, pathlib, sys\n"
        "pathlib.Path(sys.argv[-1]).write_text(json.dumps({'rows': [sys.argv[1:-1]], 'device': 'X'}))"
    )
    assert gpu.run("nccl", 600)["rows"] == [["--ranks=4", "--limit=120", "--out"]]


def test_the_report_holds_what_markdown_would_take_for_its_own() -> None:
    rows = [["why | not", "there"], ["late"]]
    text = gpu.report({"late": {"state": "passed", "seconds": 2.0, "rows": rows, "device": None}}, "python gpu.py")
    assert "on no device, 20" in text
    assert "late: passed, 2.0 s.\n\n| why \\| not | there |\n| --- | --- |\n| late |  |\n" in text


@pytest.mark.parametrize("name", gpu_sections.MATRIX)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_the_reference_adds_up(name: str, dtype: type) -> None:
    x: NDArray[np.float64] = np.random.default_rng(0).integers(-8, 8, (gpu_sections.RANKS, 1003))
    result = gpu_sections.by_numpy(gpu_sections.MATRIX[name], x.astype(dtype))
    assert (result.astype(np.int64) == x.sum(axis=0)).all()


@pytest.mark.parametrize("dtype", [*gpu_sections.INTEGERS, np.float16, np.complex64])
def test_the_reference_knows_every_type_and_reduction(dtype: type) -> None:
    x = gpu_sections.random(501, dtype, 0)
    assert x.dtype == dtype and (x != gpu_sections.random(501, dtype, 1)).any()
    for reduction, combine in gpu_sections.COMBINE.items():
        if x.dtype.kind == "c" and reduction != "sum":
            continue
        result = gpu_sections.by_numpy(gpu_sections.MATRIX["ring"], x, reduction)
        expected = combine.reduce(x, axis=0, dtype=x.dtype)
        rounding = 2e-2 if x.dtype.kind in "fc" and reduction == "sum" else 0
        assert np.allclose(result, expected, rtol=rounding, atol=rounding)


class ByNumPy(SimpleNamespace):
    """Takes the place of the fused executor in the sections: the reference itself, on a CPU."""

    def __init__(self, wrong: int = 0) -> None:
        super().__init__(calls=0, graphs=0, wrong=wrong, sites={}, told=False, limit=60.0)

    def virtual_psum(self, x: jax.Array, schedule: Any, *, reduction: str = "sum", delays_us: Any = None) -> jax.Array:
        def call(x: Any, delays: Any) -> np.ndarray:
            self.calls += 1
            held = np.asarray(x)
            late = float(np.max(delays)) * 1e-6
            site = {"plan": schedule.kind, "bytes": held[0].nbytes, "calls": 0, "arrivals": [], "after_arrival_s": []}
            site = self.sites.setdefault((schedule.kind, held[0].nbytes), site)
            site["calls"] += 1
            site["arrivals"].append(list(np.asarray(delays) * 1e-6))
            site["after_arrival_s"].append(1e-3 if schedule.kind == "ring" else 0.5e-3)
            self.told |= late > self.limit
            result = gpu_sections.by_numpy(schedule, held, reduction)
            result.view(np.uint8)[0, : self.wrong] ^= 1
            return result

        delays = np.zeros(schedule.ranks, np.int32) if delays_us is None else delays_us
        result: jax.Array = jax.pure_callback(call, jax.typeof(x), x, delays)
        return result

    def check(self) -> None:
        if self.told:
            self.told = False
            raise gpu_sections.JaxcommError("DeadlineError: psum #2 over 'virtual': rank 3 of 8 has not arrived")

    def set_deadline(self, seconds: float) -> None:
        self.limit = seconds

    def stats(self) -> list[dict[str, Any]]:
        sites: list[dict[str, Any]] = json.loads(json.dumps([*self.sites.values()]))
        return sites

    def recorded(self) -> int:
        return self.calls if self.graphs else 0


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: gpu_sections.MATRIX[name] for name in ("ring", "straggler, n - 1 chunks", "straggler, 4n chunks")}
    monkeypatch.setattr(gpu_sections, "MATRIX", few)
    monkeypatch.setattr(gpu_sections, "SIZES", [1003])
    monkeypatch.setattr(gpu_sections, "FLOATS", (np.float32, ml_dtypes.bfloat16))
    monkeypatch.setattr(gpu_sections, "INTEGERS", (np.int8, np.uint32))
    monkeypatch.setattr(gpu_sections, "CALLS", 3)
    monkeypatch.setattr(gpu_sections, "LATE_BYTES", (1 << 12, 1 << 14))


def rows_of(section: str, executor: ByNumPy, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    monkeypatch.setattr(gpu_sections, "fused", executor)
    return list(gpu_sections.SECTIONS[section]())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("section", ["exact", "graph", "late", "deadline"])
def test_an_executor_that_is_right_passes(section: str, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = ByNumPy()
    executor.graphs = 1
    head, *rows = rows_of(section, executor, monkeypatch)
    assert rows and all(len(row) == len(head) for row in rows)
    if section == "late":
        assert [row[-1] for row in rows] == ["", "pass", "pass"] * 2
        assert {row[2] for row in rows} == {"2.00"}
    if section == "deadline":
        assert rows[0][-1] == "right"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("section", ["exact", "graph", "deadline"])
def test_a_wrong_bit_is_found(section: str, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = ByNumPy(wrong=1)
    executor.graphs = 1
    with pytest.raises(SystemExit, match=r"\d+ wrong"):
        rows_of(section, executor, monkeypatch)


@pytest.mark.usefixtures("small")
def test_a_call_that_no_graph_recorded_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="3 wrong"):
        rows_of("graph", ByNumPy(), monkeypatch)


@pytest.mark.usefixtures("small")
def test_types_are_those_of_the_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    with jax.enable_x64(True):
        _, *rows = rows_of("types", ByNumPy(), monkeypatch)
    assert [row[0] for row in rows] == [
        *("float32", "float32", "float32", "bfloat16", "bfloat16", "bfloat16"),
        *("int8", "int8", "int8", "uint32", "uint32", "uint32", "complex64", "complex128"),
    ]
    assert {row[-1] for row in rows} == {"0"}


def test_the_masks_are_timed_against_their_floors(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"GRADIENT": 1 << 18, "ROUNDS": 2, "CALLS": 2}.items():
        monkeypatch.setattr(gpu_kernels, name, value)
    rows = list(gpu_kernels.masks(np.float32, peak=1.0))  # at a byte a second, everything is quick enough
    assert [row[0] for row in rows] == [
        *("means, sampled median", "means", "pack", "unpack", "drop, in place", "mask path: means, choice, drop")
    ]
    assert {tuple(row[-2:]) for row in rows} == {("1.30", "pass")}
    assert gpu_kernels._row("sum", np.float32, 1.0, 100, 200.0, 1.1)[-3:] == ["2.00", "1.10", "miss"]


def test_several_devices_are_held_to_the_direct_schedules_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The section itself, on the CPU's devices and core, which have the same bits."""
    values = {"CALLS": 2, "ELEMENTS": 1003, "TIMED_BYTES": (1 << 20,), "fused": SimpleNamespace(check=lambda: None)}
    for name, value in values.items():
        monkeypatch.setattr(gpu_devices, name, value)
    rows = list(gpu_devices.devices())
    assert rows[1:3] == [["direct", "float32", "2", "0"], ["direct", "bfloat16", "2", "0"]]
    assert rows[4][0] == "1" and all(float(cell) > 0 for cell in rows[4][1:])
    assert any(row[0] == f"3 of {1 << 20} bytes" for row in rows)


def test_it_runs_where_its_own_flags_are_added_to_those_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--a")
    assert gpu.environment({"XLA_FLAGS": "--b"})["XLA_FLAGS"] == "--a --b"
    assert gpu.environment({})["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
