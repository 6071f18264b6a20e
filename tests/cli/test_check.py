"""`jaxcomm check`: the CPU sections, and the parts of the GPU check that need no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxcomm import environment
from jaxcomm.backend import jaxlib_variables
from jaxcomm.cli import check_cpu, check_gpu, main
from jaxcomm.gpu import certificate
from jaxcomm.gpu.checks import sections, virtual
from tests.cli import documents
from tests.gpu import certified

Replace = Callable[[dict[str, str]], Path]


@pytest.mark.slow
def test_the_cpu_core_is_right_on_this_machine_in_a_bare_shell(tmp_path: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "PJRT_NPROC")}
    command = [sys.executable, "-m", "jaxcomm.cli", "check", "--cpu", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    found = documents.document(done.stdout)
    assert {name: section["state"] for name, section in found["sections"].items()} == dict.fromkeys(
        check_cpu.SECTIONS, "passed"
    )
    assert found["kernel_isa"] in ("avx512", "avx2", "neon", "plain")
    assert [row[2:] for row in found["sections"]["exact"]["rows"][1:]] == [["0", "0"]] * 6
    assert "rank 3 of 8 has not arrived after 0.3 s" in found["sections"]["deadline"]["rows"][1][0]


LIBRARIES: dict[str, tuple[dict[str, str], list[str]]] = {
    "jaxcomm's library": (jaxlib_variables.variables(), ["jaxcomm", ""]),
    "Gloo, as nobody asked": ({}, ["gloo", "JAXCOMM_EVERY_COLLECTIVE is not on"]),
    "the user's own MPI": (
        {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "mpi", "MPITRAMPOLINE_LIB": "/mine.so"},
        ["mpi", "MPITRAMPOLINE_LIB names another library, /mine.so: unset it"],
    ),
    "Gloo, as no .pth ran": (
        {"JAXCOMM_EVERY_COLLECTIVE": "1"},
        ["gloo", "JAXCOMM_EVERY_COLLECTIVE is set, but the package's jaxcomm.pth did not run: install jaxcomm by pip"],
    ),
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_it_names_the_library_of_unchanged_programs(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variables, row = LIBRARIES[name]
    for variable in (*jaxlib_variables.variables(), environment.EVERY_COLLECTIVE):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert main(["check", "--cpu", "--only", "collectives", "--json"]) == 0
    assert documents.document(capsys.readouterr().out)["sections"]["collectives"]["rows"][1] == row
    assert main(["check", "--cpu", "--only", "collectives"]) == 0
    assert " ".join(word for word in row if word) in " ".join(capsys.readouterr().out.split())


def test_a_core_that_is_wrong_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    over = check_cpu._over

    def wrong(call: Callable[[Any], Any]) -> Callable[[np.ndarray], Any]:
        right = over(call)
        return lambda x: np.asarray(right(x)) + (call.args == ("jaxcomm",))

    monkeypatch.setattr(check_cpu, "_over", wrong)
    assert main(["check", "--cpu", "--only", "exact"]) == 1
    printed = capsys.readouterr()
    assert "failed: psum: 112336 elements differ from jax.lax's" in printed.out
    assert "1 of 1 sections failed: exact." in printed.err


def test_the_dry_run_names_every_section_and_starts_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(environment.CERTIFICATE, str(tmp_path / "check.json"))
    assert main(["check", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [*sections.ALL]
    assert all(": would " in line for line in lines)
    assert main(["check", "--cpu", "--dry-run", "--json"]) == 0
    assert documents.document(capsys.readouterr().out)["sections"]["exact"]["left_out"] is None
    assert not (tmp_path / "check.json").exists()


def test_the_report_of_a_dry_run_is_what_it_prints(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    assert main(["check", "--cpu", "--dry-run", "--json", "--report", str(report)]) == 0
    assert json.loads(report.read_text()) == json.loads(capsys.readouterr().out)


def test_a_report_that_cannot_be_written_is_an_error_before_any_section(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(check_cpu, "run", lambda name, begun: ran.append(name))
    assert main(["check", "--cpu", "--report", str(tmp_path / "missing" / "report.json")]) == 1
    assert "report.json" in capsys.readouterr().err
    assert ran == []


def test_where_there_is_no_gpu_it_says_so_with_a_cure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sections, "machine", lambda: sections.Machine("no CUDA device (no driver)", {}))
    assert main(["check"]) == 1
    assert capsys.readouterr().err == (
        "error: there is no GPU to check: no CUDA device (no driver).\n"
        "  Cure: run this on a machine with one; `jaxcomm check --cpu` needs no GPU.\n"
    )


def test_a_build_without_cuda_is_cured_by_another_build(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sections, "machine", lambda: sections.Machine("jaxcomm was built without CUDA", {}))
    assert main(["check"]) == 1
    assert "Cure: on a machine with a GPU, build it in: `JAXCOMM_CUDA=ON pip install" in capsys.readouterr().err


def test_a_section_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--only", "everything"]) == 1
    assert "--only is 'everything', not a section.\n  Cure: one of machine, exact, types" in capsys.readouterr().err


def test_all_sections_exist_and_fit_into_twenty_minutes() -> None:
    assert sum(section.seconds for section in sections.ALL.values()) < sections.BUDGET < 1200
    folder = Path(sections.__file__).parent
    assert all((folder / f"{section.module}.py").exists() for section in sections.ALL.values())
    virtual_ones = {each.arguments[0] for each in sections.ALL.values() if each.module == "virtual"}
    assert virtual_ones == {*virtual.SECTIONS} and next(iter(sections.ALL)) == "machine"
    assert {section for needs in certificate.NEEDS.values() for section in needs} <= {*sections.ALL}


def test_sections_need_jax_and_numpy_alone() -> None:
    """A GPU machine that is borrowed for ten minutes may have no other packages."""
    others = ["absl", "matplotlib", "optax", "ortools", "pydantic", "scipy", "tqdm"]
    modules = ", ".join(
        f"jaxcomm.gpu.checks.{module}" for module in ("devices", "kernels", "machine", "rank", "ranks", "virtual")
    )
    script = f"import sys; sys.modules |= dict.fromkeys({others})\nimport jaxcomm, {modules}; jaxcomm.psum\n"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


# By outcome: a section's script, the expected state, and the expected rows.
ENDS = {
    "passes": ("write([['what'], ['this']])", "passed", [["what"], ["this"]]),
    "fails": ("write([['what'], ['this']]); sys.exit('tired')", "failed with 1", [["what"], ["this"], ["tired"]]),
    "crashes": ("write([['what'], ['this']]); os.abort()", "failed with -6", [["what"], ["this"]]),
    "hangs": (
        "write([['what'], ['this']]); print('waiting', flush=True); subprocess.run(['sleep', '600'])",
        "stopped after 3 s",
        [["what"], ["this"], ["waiting"]],
    ),
    "says nothing": ("pass", "passed", []),
    "cannot": ("print('looking', 'no NCCL', sep='\\n'); sys.exit(77)", "left out: no NCCL", []),
}
HEAD = """
import json, os, subprocess, sys
def write(rows):
    with open(sys.argv[-1], "w") as file:
        json.dump({"rows": rows}, file)
"""


@pytest.fixture
def only_these(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Replace:
    """Returns replace(scripts). It replaces all sections, simulates a GPU, and returns the certificate's path."""

    def replace(scripts: dict[str, str]) -> Path:
        alike = {}
        for name, body in scripts.items():
            (tmp_path / f"{name}.py").write_text(HEAD + body)
            start = (sys.executable, str(tmp_path / f"{name}.py"))
            alike[name] = sections.Section(name.title(), 3 if name == "hangs" else 60, "virtual", (), start)
        monkeypatch.setattr(sections, "ALL", alike)
        monkeypatch.setattr(check_gpu, "SECTIONS", dict.fromkeys(alike, "a script"))
        monkeypatch.setattr(sections, "machine", lambda: sections.Machine(None, certified.HERE))
        file = tmp_path / "state" / "check.json"
        monkeypatch.setenv(environment.CERTIFICATE, str(file))
        return file

    return replace


def test_a_section_that_ends_badly_is_reported_and_the_next_runs(
    only_these: Replace, capsys: pytest.CaptureFixture[str]
) -> None:
    file = only_these({name: body for name, (body, _, _) in ENDS.items()})
    assert main(["check"]) == 1
    printed = capsys.readouterr()
    assert "3 of 6 sections failed: fails, crashes, hangs." in printed.err
    written = json.loads(file.read_text())
    assert written["made_for"] == certified.HERE
    for name, (_, state, rows) in ENDS.items():
        assert f"{name}: a script\n{state}, " in printed.out
        found = written["sections"][name]
        assert found["state"] == state and all(row in found["rows"] for row in rows) and found["when"]
    assert printed.out.startswith(
        "Before this run:\npsum over GPUs of one process: jax.lax's (section 'exact': has not run)\n"
    )
    assert printed.out.count("psum over GPUs of one process: jax.lax's (section 'exact': has not run)") == 2


def test_the_report_has_what_each_section_found_as_soon_as_it_ends(
    only_these: Replace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    only_these({name: ENDS[name][0] for name in ("passes", "fails")})
    report, seen = tmp_path / "report.json", []
    keep = check_gpu.keep
    monkeypatch.setattr(check_gpu, "keep", lambda results: seen.append(report.exists()) or keep(results))
    assert main(["check", "--report", str(report)]) == 1
    found = documents.document(report.read_text())
    assert {name: each["state"] for name, each in found["sections"].items()} == {
        "passes": "passed",
        "fails": "failed with 1",
    }
    assert found["made_for"] == certified.HERE and seen == [False, True]


def test_one_section_leaves_what_was_shown_of_the_others(only_these: Replace) -> None:
    file = only_these({name: ENDS[name][0] for name in ("passes", "fails")})
    assert main(["check"]) == 1
    assert main(["check", "--only", "passes", "--json"]) == 0
    states = {name: section["state"] for name, section in json.loads(file.read_text())["sections"].items()}
    assert states == {"passes": "passed", "fails": "failed with 1"}


def test_what_was_shown_on_another_machine_is_forgotten(only_these: Replace) -> None:
    file = only_these({"passes": ENDS["passes"][0]})
    file.parent.mkdir()
    certified.write(file, ["process"], {**certified.HERE, "driver": "535.1"})
    assert main(["check"]) == 0
    assert [*json.loads(file.read_text())["sections"]] == ["passes"]


def test_a_place_that_cannot_be_written_is_named(
    only_these: Replace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only_these({"passes": ENDS["passes"][0]})
    monkeypatch.setenv(environment.CERTIFICATE, "/proc/nowhere/check.json")
    assert main(["check"]) == 1
    assert (
        "/proc/nowhere cannot be made: No such file or directory.\n  Cure: set JAXCOMM_CERT" in capsys.readouterr().err
    )


def test_a_section_has_psum_be_ours_while_it_is_tried(only_these: Replace) -> None:
    script = "file = json.load(open(os.environ['JAXCOMM_CERTIFICATE'])); write([[*file['sections']]])"
    only_these({"passes": script})
    found = sections.run("passes", 600)
    assert (found["state"], found["rows"]) == ("passed", [["passes"]])


def test_a_section_that_is_stopped_leaves_no_process(only_these: Replace, tmp_path: Path) -> None:
    child = f"pid = subprocess.Popen(['sleep', '600']).pid; open({str(tmp_path / 'pid')!r}, 'w').write(str(pid))\n"
    only_these({"hangs": f"{child}import time; time.sleep(600)"})
    assert sections.run("hangs", 600)["state"] == "stopped after 3 s"
    stat = Path("/proc", (tmp_path / "pid").read_text(), "stat")
    end = time.monotonic() + 10
    while stat.exists() and stat.read_text().split(")")[1].split()[0] != "Z" and time.monotonic() < end:
        time.sleep(0.05)
    assert not stat.exists() or stat.read_text().split(")")[1].split()[0] == "Z"


def test_what_cannot_run_here_is_left_out_and_says_why(only_these: Replace, monkeypatch: pytest.MonkeyPatch) -> None:
    only_these({"passes": ENDS["passes"][0]})
    monkeypatch.setitem(sections.ALL, "wrapped", sections.Section("A tool", 9, "virtual", (), ("no-such-tool",)))
    assert sections.run("wrapped", 600)["state"] == "left out: no-such-tool is not installed"
    assert sections.run("passes", 5)["state"] == "left out: the 1190 s of all sections were over"
