"""The commands as a user meets them: help, JSON, files, pictures and what they measure."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from absl import flags

import jaxcomm
from jaxcomm import plan, planner, profile, schedules
from jaxcomm.cli import main
from jaxcomm.cli.common import arguments
from jaxcomm.cli.dispatch import COMMANDS
from jaxcomm.profile import Link, Profile, Provenance
from jaxcomm.profile.cluster import Topology
from tests.cli import documents

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def profiled(tmp_path: Path) -> Path:
    """A profile of eight ranks. Rank 3 is 20 ms late."""
    found = Profile(
        ranks=8,
        link=Link(alpha_s=1e-6, beta_s_per_byte=1e-10, source="a test"),
        arrivals=[[0.02 * (rank == 3) for rank in range(8)]] * 4,
        provenance=Provenance(source="a test", tool="pytest"),
    )
    profile.save(found, tmp_path / "profile.json")
    return tmp_path / "profile.json"


@pytest.fixture
def planned(profiled: Path) -> Path:
    """The plan that `jaxcomm plan` makes from the profile `profiled`."""
    out = profiled.with_name("plan.json")
    assert main(["plan", str(profiled), "--out", str(out)]) == 0
    return out


def document(capsys: Capture, *words: str) -> dict:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return documents.document(capsys.readouterr().out)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_a_description_options_and_an_example(command: str, capsys: Capture) -> None:
    assert main([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: jaxcomm {command} ")
    assert COMMANDS[command][1:] in " ".join(text.split())
    assert f"example:\n  jaxcomm {command} " in text or f"example:\n  jaxcomm {command}\n" in text


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_overview_lists_every_command(words: list[str], capsys: Capture) -> None:
    assert main(words) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text and summary in text for name, summary in COMMANDS.items())


def test_version(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"jaxcomm {jaxcomm.__version__}\n"


@pytest.mark.slow
def test_what_needs_no_jax_imports_no_jax(profiled: Path) -> None:
    words = [["--help"], ["plan", str(profiled), "--out", str(out := profiled.with_name("plan.json"))]]
    words += [["export", str(out), "--to", "mscclpp", "--dry-run"], ["verify", "--schedule", "ring", "--ranks", "2"]]
    code = f"import sys; from jaxcomm.cli import main; [main(w) for w in {words}]; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_no_command_imports_jax_before_it_has_set_the_number_of_devices() -> None:
    modules = ["jaxcomm.cli." + command.replace(" ", "_").replace("-", "_") for command in COMMANDS]
    code = f"import importlib, sys; [importlib.import_module(m) for m in {modules}]; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_host_devices_keep_the_users_flags() -> None:
    code = (
        "import os; from jaxcomm.cli.common.host_devices import use_host_devices; use_host_devices(3); import jax; "
        "print(len(jax.devices()), os.environ['PJRT_NPROC'], os.environ['XLA_FLAGS'])"
    )
    flags = "--xla_cpu_enable_fast_math=false --xla_force_host_platform_device_count=5"
    environment = {**os.environ, "XLA_FLAGS": flags, "PJRT_NPROC": "2"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split() == [
        "3",
        "12",
        "--xla_cpu_enable_fast_math=false",
        "--xla_force_host_platform_device_count=3",
    ]


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (arguments.sizes, "1KiB,1.5MiB,1000", [1024, 1572864, 1000]),
        (arguments.sizes, "1KiB..20KiB", [1024, 4096, 16384, 20480]),
        (arguments.counts, "2..4,64", [2, 3, 4, 64]),
        (arguments.milliseconds, "0,20", [0.0, 0.02]),
        (arguments.fraction, "2%", 0.02),
        (arguments.fraction, "0.5", 0.5),
        (arguments.late, "rank=3,ms=20", (3, 0.02)),
    ],
)
def test_values(parse: Callable[[str], object], text: str, value: object) -> None:
    assert parse(text) == value


def test_plan_writes_the_same_bytes_twice_and_explain_reads_them(
    planned: Path, profiled: Path, capsys: Capture
) -> None:
    again = planned.with_name("again.json")
    shown = document(capsys, "plan", str(profiled), "--out", str(again))
    assert again.read_bytes() == planned.read_bytes()
    assert shown["plan"] == json.loads(planned.read_text())
    assert shown == document(capsys, "explain", str(planned))
    assert main(["explain", str(planned)]) == 0
    shown = capsys.readouterr().out
    assert "straggler is rank 3" in shown
    call = re.search(r"`jaxcomm\.plan\.load\(path, (roles=.*?)\)`", " ".join(shown.split()))
    assert call is not None
    roles = eval(call[1].removeprefix("roles="))
    assert plan.load(planned, roles=roles).roles == roles != plan.load(planned).roles


def test_dry_run_writes_nothing(profiled: Path, capsys: Capture) -> None:
    nothing = profiled.with_name("nothing.json")
    for words in (["plan", str(profiled)], ["profile", "import", str(profiled)], ["profile"]):
        assert main([*words, "--out", str(nothing), "--dry-run"]) == 0
    assert not nothing.exists()
    assert "Would time" in capsys.readouterr().out


@pytest.mark.slow
def test_options_may_stand_in_a_file_and_have_the_names_of_a_users_flags(profiled: Path) -> None:
    flags.DEFINE_string("nic", "", "a flag of the program that calls the command")
    options = profiled.with_name("options")
    options.write_text(f"--out\n{profiled.with_name('named.json')}\n--hosts\n4+4\n--nic\nhost\n")
    try:
        assert main(["plan", str(profiled), f"--flagfile={options}"]) == 0
    finally:
        delattr(flags.FLAGS, "nic")
    assert profiled.with_name("named.json").exists()


def test_explain_draws_the_schedule_of_a_size(planned: Path) -> None:
    picture = planned.with_name("timeline.svg")
    assert main(["explain", str(planned), "--svg", str(picture), "--size", "1MiB"]) == 0
    schedule = plan.load(planned).schedule_for(2**20)
    assert schedule.kind in ("straggler", "direct_join")
    assert f"{schedule.kind} allreduce, 8 ranks, {schedule.num_chunks} chunks" in "".join(
        ElementTree.parse(picture).getroot().itertext()
    )


def test_verify_proves_a_plan_and_every_kind_of_schedule(planned: Path, capsys: Capture) -> None:
    entries = len(plan.load(planned).collectives)
    assert document(capsys, "verify", str(planned))["proved"] == entries
    found = document(capsys, "verify", "--all-schedules", "--ranks", "2,3,8", "--programs")
    assert {row["kind"] for row in found["rows"]} == {
        "ring", "halving_doubling", "direct", "broadcast", "straggler", "direct_join", "hybrid", "stragglers", "chain",
        "hierarchical", "late_join",
    }  # fmt: skip
    assert all(row["counts"]["operations"] > 0 and row["seconds"] >= 0 for row in found["rows"])


def test_verify_prints_one_line_per_schedule(capsys: Capture) -> None:
    assert main(["verify", "--schedule", "straggler", "--ranks", "8", "--chunks", "7,14"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("proved  straggler: 8 ranks, 7 chunks, 9 rounds")
    assert lines[1].startswith("proved  straggler: 8 ranks, 14 chunks, 16 rounds")
    assert lines[2:] == ["2 of 2 proved: every rank ends with every contribution exactly once"]


def test_verify_refuses_a_plan_that_was_edited(planned: Path, capsys: Capture) -> None:
    planned.write_text(planned.read_text().replace('"kind": "direct"', '"kind": "ring"', 1))
    assert main(["verify", str(planned)]) == 1
    assert "hash" in capsys.readouterr().err


def test_verify_reports_a_wrong_schedule(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    half = schedules.ring(4).table()[:12]  # the ring's ReduceScatter alone
    wrong = schedules.Schedule.from_table(half, kind="ring", ranks=4, num_chunks=4)
    monkeypatch.setattr(schedules, "ring", lambda ranks: wrong)
    assert main(["verify", "--schedule", "ring", "--ranks", "4"]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("FAILED  ring: 4 ranks, 4 chunks: ") and "1 of 1 not proved" in captured.err


def test_simulate_prints_plots_and_agrees_with_the_schedules(tmp_path: Path, capsys: Capture) -> None:
    picture = tmp_path / "times.png"
    words = ["simulate", "--ranks", "8,1024", "--sizes", "1KiB,64MiB", "--late-ms", "0,20", "--plot", str(picture)]
    found = document(capsys, *words)
    assert len(found["rows"]) == 8
    row = found["rows"][0]
    ring = schedules.ring(8).seconds(1024, found["alpha_s"], found["beta_s_per_byte"])
    assert row["seconds"]["ring"] == pytest.approx(ring)
    assert all(row["lower_bound_s"] <= min(row["seconds"].values()) for row in found["rows"])
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(words) == 0
    assert "1024" in capsys.readouterr().out


def test_simulate_times_the_halves(planned: Path, capsys: Capture) -> None:
    words = ["simulate", "--ranks", "8,64", "--sizes", "64MiB", "--plan", str(planned), "--collective", "all_gather"]
    words += ["--plot", str(planned.with_name("times.png"))]
    found = document(capsys, *words)
    assert planned.with_name("times.png").read_bytes().startswith(b"\x89PNG")
    few, many = found["rows"]
    direct = schedules.direct(8).seconds(2**26, found["alpha_s"], found["beta_s_per_byte"]) / 2
    assert few["plan_s"] == few["seconds"]["direct"] == few["lower_bound_s"] == pytest.approx(direct)
    assert many["lower_bound_s"] < many["seconds"]["halving/doubling"] < many["seconds"]["ring"]
    assert main(words) == 0
    assert "A late rank gains nothing" in capsys.readouterr().out


def test_simulate_takes_ranks_link_and_delay_from_a_profile(profiled: Path, planned: Path, capsys: Capture) -> None:
    found = document(capsys, "simulate", "--profile", str(profiled), "--plan", str(planned), "--sizes", "16MiB")
    [row] = found["rows"]
    assert (found["alpha_s"], row["ranks"], row["late_s"]) == (1e-6, 8, pytest.approx(0.02))
    assert row["plan_schedule"] == plan.load(planned).schedule_for(2**24).kind


def test_simulate_refuses_a_plan_for_other_ranks(planned: Path, capsys: Capture) -> None:
    assert main(["simulate", "--plan", str(planned), "--ranks", "4,64"]) == 1
    assert "plan.json is for 8 ranks; the numbers to predict are: 4, 64." in capsys.readouterr().err


def test_simulate_runs_the_schedules_message_by_message(profiled: Path, planned: Path, capsys: Capture) -> None:
    words = ["simulate", "events", "--profile", str(profiled), "--plan", str(planned), "--sizes", "16MiB"]
    words += ["--repeats", "3"]
    runs = {row["schedule"]: row["forecast"] for row in document(capsys, *words)["rows"]}
    assert all(found["runs"] == 3 and found["parts"]["repair_s"] == 0 for found in runs.values())
    ring = schedules.ring(8).seconds(2**24, 1e-6, profile.load(profiled).link.beta_s_per_byte)
    assert runs["ring"]["mean_s"] == pytest.approx(ring, rel=1e-6)
    assert len(runs) == 5 and [name for name in runs if name.startswith("plan: ")]
    lossy = {row["schedule"]: row["forecast"] for row in document(capsys, *words, "--packet-loss", "1%")["rows"]}
    bound = document(capsys, *words, "--packet-loss", "1%", "--bound", "50%")["rows"]
    assert lossy["ring"]["mean_s"] > runs["ring"]["mean_s"]
    assert lossy["ring"]["parts"]["repair_s"] > 0
    assert all(row["forecast"]["mean_s"] == pytest.approx(runs[row["schedule"]]["mean_s"]) for row in bound)
    assert main([*words, "--packet-loss", "1%"]) == 0
    printed = capsys.readouterr().out
    assert "0.01 of the packets lost, TCP retransmits all" in printed and "losses" in printed


def test_simulate_predicts_a_plan_on_the_network_that_it_was_made_for(tmp_path: Path, capsys: Capture) -> None:
    topology = Topology(hosts=(0, 0, 0, 0, 1, 1, 1, 1), nic="host", slow=4.0)
    made = planner.plan(
        Profile(
            ranks=8,
            link=Link(alpha_s=1e-6, beta_s_per_byte=1e-9, source="assumed"),
            topology=topology,
            provenance=Provenance(source="assumed", tool="test"),
        )
    )
    assert made.network and made.network.topology == topology
    path = tmp_path / "hosts.json"
    plan.save(made, path)
    words = ["--plan", str(path), "--ranks", "8", "--sizes", "16MiB", "--late-ms", "0"]
    [row] = document(capsys, "simulate", *words)["rows"]
    ring = schedules.ring(8).seconds(2**24, 0, 1e-9 / 25)
    assert row["seconds"]["ring"] > 3.9 * ring
    runs = document(capsys, "simulate", "events", *words)["rows"]
    assert runs[0]["forecast"]["mean_s"] == pytest.approx(row["seconds"]["ring"], rel=1e-3)


def test_profile_dry_run_says_what_it_would_do(capsys: Capture) -> None:
    found = document(capsys, "profile", "--dry-run", "--late", "rank=1,ms=3", "--late", "rank=2,ms=4", "--steps", "7")
    assert (found["devices"], found["steps"]) == (8, 7)
    assert found["late"] == [{"rank": 1, "seconds": 0.003}, {"rank": 2, "seconds": 0.004}]


def test_python_m_is_the_command() -> None:
    words = [sys.executable, "-m", "jaxcomm.cli", "verify", "--schedule", "ring", "--ranks", "2"]
    found = subprocess.run(words, capture_output=True, text=True, check=True)
    assert found.stdout.startswith("proved  ring: 2 ranks, 2 chunks, 2 rounds, 4 transfers")


@pytest.mark.slow
def test_profile_measures_the_late_rank(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "profile.json"
    found = document(
        capsys, "profile", "--sizes", "4KiB,64KiB", "--steps", "5", "--late", "rank=5,ms=30", "--out", str(out)
    )
    assert found["profile"] == json.loads(out.read_text())
    late = profile.find_straggler(profile.load(out))
    assert (late.rank, late.late_steps) == (5, 5)
    assert 0.02 < late.median_s < 0.2


def test_bench_sums_right_beside_lax(tmp_path: Path, capsys: Capture, planned: Path) -> None:
    out = tmp_path / "bench.json"
    words = ["bench", "--sizes", "1KiB,64KiB", "--rounds", "2", "--plan", str(planned), "--out", str(out)]
    found = document(capsys, *words)
    assert found == json.loads(out.read_text())
    for row, size in zip(found["rows"], (1024, 65536), strict=True):
        assert (row["bytes"], row["wrong"], row["schedule"]) == (size, 0, plan.load(planned).schedule_for(size).kind)
        assert row["ratio"] == pytest.approx(row["peer_s"] / row["jaxcomm_s"])
        assert {side: len(turns) for side, turns in row["times"].items()} == {"lax": 2, "jaxcomm": 2}
        assert row["over_floor"] == pytest.approx(row["jaxcomm_s"] / row["floor_s"])
    for half in ("reduce_scatter", "all_gather"):
        [row] = document(capsys, "bench", "--collective", half, "--sizes", "1MiB", "--rounds", "1")["rows"]
        assert (row["bytes"], row["wrong"], row["schedule"], row["floor_s"]) == (2**20, 0, "default", None)
    found = document(capsys, "bench", "--calls", "4", "--rounds", "1")
    assert [(row["calls"], row["bytes"], row["wrong"]) for row in found["rows"]] == [(4, 1024, 0)]


def test_bench_times_schedules_from_the_late_ranks_arrival(capsys: Capture) -> None:
    words = ["bench", "--late", "rank=3,ms=30", "--schedules", "ring,straggler:7", "--sizes", "1MiB", "--rounds", "1"]
    [row] = document(capsys, *words)["rows"]
    ring, straggler = row["schedules"]
    assert (ring["schedule"], straggler["schedule"], ring["calls"]) == ("ring", "straggler:7", 10)
    assert ring["last"] > 0 and 0 < straggler["after_arrival_s"] < 0.03
    assert ring["after_arrival_s"] == pytest.approx(statistics.median(row["times"]["ring"]))
    assert len(row["times"]["straggler:7"]) == straggler["last"]
    assert straggler["early_share"] > ring["early_share"]
    assert main([*words]) == 0
    assert "arrival to end" in capsys.readouterr().out


def test_a_disagreement_with_lax_fails_the_bench(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    from jaxcomm import collectives

    monkeypatch.setattr(collectives, "psum", lambda x, axis, plan: 2 * x)
    assert main(["bench", "--sizes", "1KiB", "--rounds", "1"]) == 1
    assert "elements differ from lax's on integers" in capsys.readouterr().err
