"""Mistakes at the command line: one clear error, an exit code, and no partial output."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from jaxcomm import plan, planner, profile
from jaxcomm.cli import main
from jaxcomm.errors import JaxcommError
from jaxcomm.profile import Link, Profile, Provenance

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["simulat"], "did you mean `jaxcomm simulate`?"),
        (["xyzzy"], "the commands are: demo, profile"),
        (["plan"], "the following arguments are required: profile"),
        (["plan", "p.json", "--min-gain", "200%"], "'200%' is not a share between 0 and 1"),
        (["simulate", "--sizes", "3fo"], "'3fo' is not a size; write for example 64KiB"),
        (["simulate", "--sizes", "0.4B"], "'0.4B' is not a size"),
        (["simulate", "--sizes", "2MiB..1MiB"], "runs backwards"),
        (["simulate", "--ranks", "8..4"], "'8..4'"),
        (["simulate", "--gigabytes-per-s", "0"], "'0' is not a number from 1e-09 to 1e+09"),
        (["simulate", "--alpha-us", "inf"], "'inf' is not a number from 0 to 1e+09"),
        (["simulate", "--packet-loss", "1%"], "unrecognized arguments: --packet-loss"),
        (["simulate", "events", "--repeats", "0"], "'0' is not a whole number from 1 to 1000000"),
        (["plan", "p.json", "--ports", "9999999999"], "'9999999999' is not a whole number from 1 to 4096"),
        (["simulate", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["verify", "--schedule", "rings"], "invalid choice: 'rings'"),
        (["bench", "--late", "rank=3"], "write for example rank=3,ms=20"),
        (["bench", "--late", "rank=3,ms=0"], "write for example rank=3,ms=20"),
        (["top", "--hosts", "a,,b"], "'a,,b' has an empty word"),
        (["bench", "--schedules", "ring,"], "'ring,' has an empty word"),
        (["bench", "--peer", "nccl"], "invalid choice: 'nccl'"),
        (["export", "plan.json", "--to", "nccl"], "invalid choice: 'nccl'"),
        (["simulate", "--sizes", "10TiB"], "'10TiB' is too large; sizes go to 1TiB"),
        (["simulate", "--sizes", f"{'9' * 400}GiB"], "is too large; sizes go to 1TiB"),
        (["verify", "--schedule", "ring", "--ranks", "1..99999999999"], "'1..99999999999' goes beyond 65536"),
        (["verify", "--schedule", "ring", "--ranks", "²"], "'²' is not a number or a range"),
        (["plan", "p.json", "--hosts", "4+4", "--slow", "0"], "'0' is not a factor from 1 to 1e6"),
        (["plan", "p.json", "--racks", "4+4", "--uplink", "nan"], "'nan' is not a factor from 1 to 1e6"),
        (["profile", "import", "x.txt", "--rail", "eth1"], "'eth1' is not a rail and its transport; write for example"),
        (["demo", "--seed", "-1"], "'-1' is not a whole number from 0 to 2147483647"),
        (["demo", "--hidden", "1e3"], "'1e3' is not a whole number from 1 to 65536"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_usage_is_2_and_says_what(words: list[str], message: str, capsys: Capture) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and "usage:" not in error


@pytest.mark.parametrize("words", [["testbed"], ["testbed", "--help"], ["testbed", "-h"]], ids=" ".join)
def test_a_group_of_commands_says_what_is_in_it(words: list[str], capsys: Capture) -> None:
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("testbed run", "testbed check", "testbed clean"))


def test_a_group_of_commands_has_no_others(capsys: Capture) -> None:
    assert main(["testbed", "walk"]) == 2
    assert "jaxcomm has no command" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "nowhere.json"], "error: nowhere.json: cannot be read: No such file"),
        (["explain", "nowhere.json"], "error: nowhere.json: cannot be read: No such file"),
        (["verify", "nowhere.json"], "error: nowhere.json: cannot be read: No such file"),
        (["export", "nowhere.json", "--to", "mscclpp"], "error: nowhere.json: cannot be read: No such file"),
        (["profile", "import", "nowhere.log"], "error: nowhere.log: cannot be read: No such file"),
        (["verify"], "error: nothing to verify"),
        (["verify", "--schedule", "ring", "--ranks", "1"], "error: ring: ranks is 1; a collective needs at least 2"),
        (["simulate", "--ranks", "2048"], "error: --ranks goes from 2048 to 2048; it must stay in 2..1024"),
        (["bench", "--late", "rank=3,ms=4", "--collective", "all_gather"], "--late is for all_reduce; a late rank"),
        (["bench", "--late", "rank=3,ms=4", "--peer", "mpi"], "--late compares jaxcomm's schedules with each other"),
        (
            ["bench", "--peer", "mpi"],
            "--peer mpi: MPI's ranks are processes, and this is the only one.\n  Cure: mpirun",
        ),
        (["bench", "--peer", "mpi4py"], "--peer mpi4py: MPI's ranks are processes, and this is the only one"),
        (["bench", "--peer", "mpi", "--collective", "reduce_scatter"], "--peer mpi has no reduce_scatter"),
        (["bench", "--peer", "mpi4py", "--collective", "all_gather"], "--peer mpi4py is for all_reduce"),
        (["simulate", "events", "--packet-loss", "60%"], "error: --packet-loss is 60%; the models hold"),
        (["simulate", "events", "--bound", "10%"], "error: --bound is 0.1, but no packet is ever lost."),
        (
            ["simulate", "--plot", "/nowhere/x.png", "--ranks", "8", "--sizes", "1KiB"],
            "error: /nowhere/x.png: cannot be",
        ),
        (["bench", "--devices", "1"], "error: --devices is 1; a collective needs at least 2"),
        (["bench", "--devices", "64"], "error: --devices is 64 but JAX started with 8 host devices"),
        (["bench", "--rounds", "0"], "error: --rounds is 0"),
        (["bench", "--devices", "100000"], "error: --devices is 100000; at most 1024"),
        (["bench", "--late", "rank=8,ms=1"], "error: --late names rank 8; with 8 devices the ranks are 0 to 7"),
        (["bench", "--late", "rank=3,ms=1", "--schedules", "ring:4"], "error: --schedules has 'ring:4'"),
        (["profile", "--late", "rank=9,ms=1"], "error: late names rank 9; the ranks are 0 to 7"),
        (["demo", "--late", "rank=8,ms=1"], "error: --late names rank 8"),
        (["demo", "--steps", "1"], "error: --steps is 1"),
        (["demo", "--batch", "900"], "error: --batch 900 on 8 devices is more than the 1797 images of the data set."),
        (["demo", "--out", "/proc/x"], "error: /proc/x: cannot be made a folder: No such file or directory."),
        (
            ["demo", "--flagfile=nowhere"],
            "error: --flagfile: nowhere cannot be read: No such file or directory.",
        ),
        (["bench", "--late", "rank=3,ms=1", "--schedules", "straggler:0"], "error: --schedules has 'straggler:0'"),
        (["bench", "--out", "."], "error: .: cannot be written: Is a directory."),
        (["profile", "--out", "/nowhere/x"], "error: /nowhere/x: cannot be written: No such file or directory."),
        (["profile", "import", "x.txt", "--rail", "eth1=tcp"], "error: --executor and --rail need --into"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_1_with_one_clear_error(
    words: list[str], message: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(jax.devices()) == 8  # JAX has started, so commands cannot change its number of devices
    monkeypatch.chdir(tmp_path)
    assert main(words) == 1
    captured = capsys.readouterr()
    assert message in captured.err and "Traceback" not in captured.err and captured.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with profile.json for eight ranks, and plan.json made from this profile."""
    monkeypatch.chdir(tmp_path)
    link = Link(alpha_s=1e-6, beta_s_per_byte=1e-10, source="a test")
    late = [[0.02 * (rank == 3) for rank in range(8)]]
    found = Profile(ranks=8, link=link, arrivals=late, provenance=Provenance(source="a test", tool="pytest"))
    profile.save(found, "profile.json")
    plan.save(planner.plan(found), "plan.json")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("plan profile.json --hosts 4+5", "error: --hosts 4+5 names 9 ranks, but profile.json is of 8."),
        ("plan profile.json --racks 4+3", "error: --racks 4+3 names 7 ranks, but profile.json is of 8."),
        ("plan profile.json --hosts 4+4 --racks 5+3", "error: --racks 5+3 cuts a host in two; the hosts have 4+4"),
        ("plan profile.json --slow 2", "error: --slow has no effect without --hosts."),
        ("plan profile.json --nic host", "error: --nic has no effect without --hosts."),
        ("what-if profile.json --uplink 2", "error: --uplink has no effect without --racks."),
        (
            "plan profile.json --model GPT9",
            "error: no bound on the drops of 'GPT9' is published; known models: GoogleNet",
        ),
        ("plan profile.json --model resnet51", "  Cure: did you mean ResNet50? Else name a model that is like yours"),
        ("plan profile.json --out .", "error: .: cannot be written: Is a directory."),
        ("plan profile.json --explain-json /proc/x", "error: /proc/x: cannot be written: No such file or directory."),
        ("explain plan.json --svg a.svg --explain-json .", "error: .: cannot be written: Is a directory."),
        ("simulate --plot . --ranks 8", "error: .: cannot be written: Is a directory."),
        ("export plan.json --to mscclpp --out /proc/x", "error: /proc/x: cannot be made a folder: No such file"),
        ("export plan.json --to mscclpp --out plan.json/x", "error: plan.json/x: cannot be made a folder: Not a dir"),
        ("profile import profile.json --out /proc/x", "error: /proc/x: cannot be written: No such file or directory."),
        ("profile step x.py:f --out .", "error: .: cannot be written: Is a directory."),
        (
            "what-if profile.json --without-rail eth1",
            "  Cure: import what each was timed to take: `jaxcomm profile imp",
        ),
        ("what-if profile.json --uplink-rate 0=1/4", "  Cure: say which ranks are in which: `--racks 4+4`"),
    ],
)
def test_a_mistake_about_a_profile_or_an_output_comes_before_the_work(
    words: str, message: str, eight: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worked(*args: object, **options: object) -> None:
        raise AssertionError("the work began")

    if "--out" in words or "--explain-json" in words:
        monkeypatch.setattr(planner, "plan", worked)
    assert main(words.split()) == 1
    captured = capsys.readouterr()
    assert message in captured.err and "\n  Cure: " in captured.err and captured.out == ""
    assert {path.name for path in eight.iterdir()} == {"profile.json", "plan.json"}


def test_what_is_no_file_is_written_to_and_a_link_leads_to_the_file(eight: Path) -> None:
    assert main(["plan", "profile.json", "--out", "/dev/null"]) == 0
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    Path("link.json").symlink_to("linked.json")
    assert main(["plan", "profile.json", "--out", "link.json"]) == 0
    assert Path("link.json").is_symlink() and plan.load("linked.json") == plan.load("plan.json")


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 4294967296 bytes.")]
)
def test_too_little_memory_is_a_mistake(error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def broken(path: str) -> None:
        raise error

    monkeypatch.setattr(plan, "load", broken)
    assert main(["explain", "plan.json"]) == 1
    assert capsys.readouterr().err.startswith("error: there is not enough memory for this.\n  Cure: ")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def broken(path: str) -> None:
        raise ModuleNotFoundError("No module named 'sklearn.datasets'", name="sklearn.datasets")

    monkeypatch.setattr(plan, "load", broken)
    assert main(["explain", "plan.json"]) == 1
    assert (
        capsys.readouterr().err
        == "error: this command needs the package sklearn.\n  Cure: pip install 'jaxcomm[demo]'\n"
    )


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a line in a shell in which `jaxcomm` is the command line."""
    jaxcomm = f'jaxcomm() {{ "{sys.executable}" -m jaxcomm.cli "$@"; }}\n'
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        ["bash", "-c", jaxcomm + line], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.slow
def test_an_output_that_is_full_closed_or_lacks_letters(eight: Path) -> None:
    found = shell("jaxcomm plan profile.json >/dev/full", eight)
    assert (found.returncode, found.stderr.splitlines()[0]) == (
        1,
        "error: the output cannot be written: No space left on device.",
    )
    found = shell("jaxcomm plan profile.json --out closed.json >&- 2>&-", eight)
    assert (found.returncode, found.stderr) == (0, "") and (eight / "closed.json").exists()
    found = shell("jaxcomm --help | true; exit ${PIPESTATUS[0]}", eight)
    assert (found.returncode, found.stderr) == (0, "")
    found = shell("PYTHONIOENCODING=ascii jaxcomm --help", eight)
    assert found.returncode == 0 and found.stdout.startswith("jaxcomm: profile ? plan ?")


PLANNING = ["plan", "profile.json", "--hosts", "4+4", "--out", "x.json"]


@pytest.mark.parametrize(
    ("starts", "command"),
    [
        ("jaxcomm.cli.plan", PLANNING),
        ("numpy", PLANNING),
        ("ortools", ["verify", "--schedule", "straggler", "--ranks", "6"]),
    ],
)
def test_an_interrupt_is_130_and_one_line_at_any_moment(starts: str, command: list[str], eight: Path) -> None:
    """The signal arrives during the import of the module `starts`."""
    program = f"""
import os, signal, sys
from jaxcomm.cli import main
class Finder:
    def find_spec(name, path=None, target=None):
        if name == {starts!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
sys.argv = ["jaxcomm", *{command!r}]
sys.exit(main())
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd=eight)
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "error: interrupted\n")
    assert {path.name for path in eight.iterdir()} == {"profile.json", "plan.json"}


def test_an_interrupt_after_a_search_for_a_template_is_pythons() -> None:
    program = """
import signal
from jaxcomm import schedules
schedules.template(6)
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stdout) == (0, "interrupted\n")


def test_a_mistake_in_a_process_of_its_own_has_the_exit_code_and_no_traceback() -> None:
    code = "import sys; from jaxcomm.cli import main; sys.exit(main(['plan', 'nowhere.json']))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.startswith("error: nowhere.json: ")


def test_an_unexpected_exception_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(plan, "load", broken)
    with pytest.raises(ZeroDivisionError):
        main(["explain", "plan.json"])


def test_an_error_of_ours_is_a_mistake(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def broken(path: str) -> None:
        raise JaxcommError("it is so.\n  Cure: none")

    monkeypatch.setattr(plan, "load", broken)
    assert main(["explain", "plan.json"]) == 1
    assert capsys.readouterr().err == "error: it is so.\n  Cure: none\n"
