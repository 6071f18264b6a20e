"""benchmarks/gpu.py without a GPU: what it starts and ends, and what it reports."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
gpu = importlib.import_module("gpu")
gpu_sections = importlib.import_module("gpu_sections")
gpu_nccl = importlib.import_module("gpu_nccl")
gpu_nccl_rank = importlib.import_module("gpu_nccl_rank")
gpu_hosts_rank = importlib.import_module("gpu_hosts_rank")


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
        assert (ROOT / "benchmarks" / section.script).exists()
    by_nccl = {section.arguments[0] for section in gpu.ALL.values() if section.script == "gpu_nccl.py"}
    assert by_nccl == {*gpu_nccl_rank.WORK, *gpu_hosts_rank.WORK}
    assert {*gpu_nccl.ON_HOSTS} == {*gpu_hosts_rank.WORK}


def test_one_gpu_needs_jax_and_numpy_alone() -> None:
    """A machine that is lent for ten minutes may have no more of what jaxcomm depends on."""
    others = ["absl", "matplotlib", "optax", "ortools", "pydantic", "scipy", "tqdm"]
    ranks = {"gpu_nccl_rank", "gpu_hosts_rank", "gpu_processes_rank"}
    sections = ranks | {Path(section.script).stem for section in gpu.ALL.values()}
    script = f"import sys; sys.modules |= dict.fromkeys({others})\nimport jaxcomm, {', '.join(sections)}; jaxcomm.psum"
    script += "\nassert not gpu_hosts_rank.HAS_PYDANTIC"
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
    (gpu.HERE / "cannot.py").write_text("import sys\nprint('looking', 'no NCCL', sep='\\n')\nsys.exit(77)\n")
    monkeypatch.setitem(gpu.ALL, "cannot", gpu.Section("A script", 9, "cannot.py", ()))
    monkeypatch.setitem(gpu.ALL, "wrapped", gpu.Section("A tool", 9, "passes.py", (), ("no-such-tool",)))
    assert gpu.run("cannot", 600)["state"] == "left out: no NCCL"
    assert gpu.run("wrapped", 600)["state"] == "left out: no-such-tool is not installed"
    assert gpu.run("passes", 5)["state"] == "left out: the 590 s of all sections were over"


def test_the_report_holds_what_markdown_would_take_for_its_own() -> None:
    rows = [["why | not", "there"], ["late"]]
    text = gpu.report({"late": {"state": "passed", "seconds": 2.0, "rows": rows, "device": None}}, "python gpu.py")
    assert "on no device, 20" in text
    assert "late: passed, 2.0 s.\n\n| why \\| not | there |\n| --- | --- |\n| late |  |\n" in text


def test_it_runs_where_its_own_flags_are_added_to_those_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--a")
    assert gpu.environment({"XLA_FLAGS": "--b"})["XLA_FLAGS"] == "--a --b"
    assert gpu.environment({})["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
