"""`jaxcomm launch` with real processes: they find each other, the failure of one ends all, and nothing survives."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from jaxlib import _jax

from jaxcomm.cli import main
from jaxcomm.distributed.launch import commands as launch
from jaxcomm.distributed.launch import processors
from jaxcomm.distributed.launch.coordinator import Coordinator
from jaxcomm.errors import JaxcommError
from tests.cli import documents

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[2]

JOB = """
import os, socket, sys, time
import jax
jax.distributed.initialize()
from jaxcomm.distributed.connect import members
from jaxcomm.errors import JaxcommError

class Core:
    def __init__(self): self.file, self.sockets, self.files = os.memfd_create("jaxcomm"), {}, {}
    def shm_file(self): return self.file, 7
    def seals_by_aes(self): return False
    def open_rails(self, rails): pass
    def add_tcp(self, process, rail, fd, keys): self.sockets[process] = socket.socket(fileno=fd)
    def add_shm(self, process, fd, number): self.files[process] = fd
    def start(self, hosts, host_names, *, has_processor_each): pass
    def close(self, *, for_change=False): pass

def everybody_answers(member):
    for connection in member.core.sockets.values():
        connection.send(bytes([member.process]))
    for process, connection in member.core.sockets.items():
        select.select([connection], [], [], 60)
        assert connection.recv(9) == bytes([process])
    for process, file in member.core.files.items():
        os.pwrite(file, bytes([member.process + 1]), member.process)

import select
found = members.connected(new_core=Core)
assert members.connected(new_core=Core) is found
everybody_answers(found)
print("first", found.generation, found.transports, jax.local_device_count(), jax.device_count())
jax.distributed.shutdown()
try:
    members.connected(new_core=Core)
except JaxcommError as error:
    print(str(error).splitlines()[0])
jax.clear_caches()
jax.extend.backend.clear_backends()
if os.environ["SLURM_PROCID"] == "0":
    open(sys.argv[1], "w").close()
while not os.path.exists(sys.argv[1]):  # else a process may join the coordinator that process 0 is about to end
    time.sleep(0.01)
jax.distributed.initialize()
found = members.connected(new_core=Core)
everybody_answers(found)
print("second", found.generation)
"""


def script(folder: Path, text: str) -> Path:
    file = folder / "script.py"
    file.write_text(text)
    return file


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "jaxcomm.cli", "launch", *map(str, words)]


ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=120, env=ENVIRONMENT)


@contextlib.contextmanager
def running(*words: object) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as job:
        try:
            yield job
        finally:
            job.kill()


def numbers(job: subprocess.Popen[str], count: int) -> list[int]:
    """Descriptors of processes whose numbers the job prints."""
    assert job.stdout is not None
    return [os.pidfd_open(int(job.stdout.readline().split()[-1])) for _ in range(count)]


def assert_ended(descriptors: list[int]) -> None:
    for each in descriptors:
        assert select.select([each], [], [], 30)[0], "a process lives on"
        os.close(each)


@pytest.mark.slow
@pytest.mark.parametrize(("transport", "others"), [("tcp", "tcp"), ("auto", "shm")])
def test_processes_find_and_connect_with_each_other_twice(tmp_path: Path, transport: str, others: str) -> None:
    file = script(tmp_path, JOB)
    found = run("-n", 3, "--devices-per-process", 2, "--transport", transport, file, tmp_path / "ended")
    assert found.returncode == 0, found.stderr
    for process in range(3):
        lines = [line for line in found.stdout.splitlines() if line.startswith(f"[{process}] ") and "Gloo" not in line]
        transports = tuple("" if each == process else others for each in range(3))
        assert lines == [
            f"[{process}] first 1 {transports} 2 6",
            f"[{process}] ranks are in several processes, but jax.distributed has not been initialized.",
            f"[{process}] second 2",
        ]


LEAVES_ONE_BEHIND = """
import os, subprocess, sys, time
subprocess.Popen(["sleep", "600"])
print(os.getpid(), flush=True)
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
if os.environ["SLURM_PROCID"] == "1":
    sys.stdin.read()  # nothing: it is at its end
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    END
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ("print('so long', file=sys.stderr); sys.exit(3)", 3, "ended with exit status 3."),
        ("raise ValueError('of a bug')", 1, "ended with exit status 1."),
        ("os.kill(os.getpid(), 11)", 139, "was ended by signal 11 (Segmentation fault)."),
        (
            "os.kill(os.getpid(), 9)",
            137,
            "was ended by signal 9 (Killed); the kernel does that when memory runs out.",
        ),
    ],
)
def test_the_failure_of_one_ends_all(tmp_path: Path, end: str, code: int, words: str) -> None:
    with running("-n", 3, script(tmp_path, LEAVES_ONE_BEHIND.replace("END", end)), tmp_path / "go") as job:
        descriptors = numbers(job, 6)
        (tmp_path / "go").touch()
        _, errors = job.communicate(timeout=60)
        assert job.returncode == code
        assert f"\nerror: process 1 of 3 {words}\n  It printed last:\n    " in "\n" + errors
        assert ("[1] ValueError: of a bug\n" in errors) == ("bug" in end)
        assert ("    so long\n" in errors) == ("so long" in end)
        assert_ended(descriptors)


GO_ON = """
import os, signal, sys, time
process = int(os.environ["SLURM_PROCID"])
assert os.environ["JAX_ENABLE_RECOVERABILITY"] == "1"
if process == 1:
    print("so long")
    os.kill(os.getpid(), signal.SIGKILL)
if process == int(sys.argv[1]):
    sys.exit(3)
time.sleep(1)
print("goes on")
"""


@pytest.mark.parametrize(("process", "code"), [(2, 0), (0, 3)])
def test_others_go_on_unless_the_first_fails(tmp_path: Path, process: int, code: int) -> None:
    found = run("-n", 4, "--keep-going", script(tmp_path, GO_ON), process)
    assert found.returncode == code, found.stderr
    lines = sorted(line for line in found.stdout.splitlines() if "goes on" in line)
    assert code == 3 or lines == ["[0] goes on", "[3] goes on"]
    killed = (
        "was ended by signal 9 (Killed); the kernel does that when memory runs out.\n  It printed last:\n    so long"
    )
    assert (f"error: process 1 of 4 {killed}\n" in found.stderr) or code == 3
    assert f"error: process {process} of 4 ended with exit status 3.\n" in found.stderr


STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: print("not I", flush=True))
print(os.getpid(), flush=True)
while True:
    time.sleep(600)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_also_those_that_ignore_theirs(tmp_path: Path, number: int, code: int) -> None:
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("this process ignores the signal, as after nohup, and so do those that it starts")
    with running("-n", 2, script(tmp_path, STUBBORN)) as job:
        descriptors = numbers(job, 2)
        job.send_signal(number)
        printed, errors = job.communicate(timeout=60)
        assert job.returncode == code
        assert sorted(printed.splitlines()) == ["[0] not I", "[1] not I"]
        assert errors == f"error: ended by signal {number} ({signal.strsignal(number)})\n"
        assert_ended(descriptors)


def test_nothing_survives_a_launcher_that_is_killed(tmp_path: Path) -> None:
    with running("-n", 2, script(tmp_path, LEAVES_ONE_BEHIND.replace("END", "pass")), "go") as job:
        descriptors = numbers(job, 4)
        job.kill()
        assert_ended(descriptors)


def test_nothing_survives_where_nobody_reads(tmp_path: Path) -> None:
    talker = "import os\nprint(os.getpid(), flush=True)\nwhile True: print('more', flush=True)"
    with running("-n", 2, script(tmp_path, talker)) as job:
        assert job.stdout is not None
        found: dict[str, int] = {}
        while len(found) < 2:
            prefix, word = job.stdout.readline().split()
            if word != "more":
                found[prefix] = os.pidfd_open(int(word))
        job.stdout.close()
        assert job.wait(60) == 0  # as `head` has seen enough
        assert_ended([*found.values()])


def test_lines_say_whose_they_are_on_the_same_stream(tmp_path: Path) -> None:
    text = "import sys\nprint('out')\nprint('täst', file=sys.stderr)\nprint('end', end='')"
    found = run("-n", 2, script(tmp_path, text))
    assert sorted(found.stdout.splitlines()) == ["[0] end", "[0] out", "[1] end", "[1] out"]
    assert sorted(found.stderr.splitlines()) == ["[0] täst", "[1] täst"]


def test_an_unfinished_line_is_shown_though_another_program_keeps_the_stream() -> None:
    found = run("-n", 1, "--", "sh", "-c", "setsid sleep 20 & printf unfinished; exit 3")
    assert (found.returncode, found.stdout) == (3, "[0] unfinished\n")


def test_modules_and_programs_run_too() -> None:
    found = run("-n", 1, "-m", "platform", "--terse")
    assert found.stdout == f"[0] {platform.platform(terse=True)}\n"
    found = run("-n", 2, "--", "sh", "-c", "echo $SLURM_PROCID-$1", "sh", "--json")
    assert sorted(found.stdout.splitlines()) == ["[0] 0---json", "[1] 1---json"]


def test_dry_run_shows_commands_and_variables(tmp_path: Path, capsys: Capture) -> None:
    file = script(tmp_path, "")
    assert main(["launch", "-n", "2", "--transport", "shm", "--dry-run", "--json", str(file), "--steps", "3"]) == 0
    shown = documents.document(capsys.readouterr().out)["processes"]
    assert [each["command"] for each in shown] == [[sys.executable, str(file), "--steps", "3"]] * 2
    assert [each["environment"]["SLURM_PROCID"] for each in shown] == ["0", "1"]
    assert {each["environment"]["JAXCOMM_TRANSPORT"] for each in shown} == {"shm"}
    assert main(["launch", "-n", "1", "--dry-run", str(file), "two words"]) == 0
    line = capsys.readouterr().out
    assert re.fullmatch(rf"(\w+=\S+ )*XLA_FLAGS='?\S.*{re.escape(str(file))} 'two words'\n", line)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-n", "2"], "there is nothing to run.\n  Cure: jaxcomm launch -n 4 script.py"),
        (["-n", "2", "none.py"], "there is no script none.py.\n  Cure: check the path."),
        (
            ["-n", "2", "no-such-program"],
            "there is no program 'no-such-program'.\n  Cure: a script's name ends in",
        ),
        (["-n", "2", "--numbers", "1", "sh"], "--numbers goes with --join only.\n  Cure: leave out --numbers."),
        (
            ["-n", "2", "--join", "127.0.0.1:9", "--numbers", "1..2", "sh"],
            "--numbers has 2, but -n is 2.\n  Cure: make -n larger.",
        ),
    ],
)
def test_mistakes_are_named(words: list[str], message: str, capsys: Capture) -> None:
    assert main(["launch", *words]) == 1
    assert capsys.readouterr().err.startswith(f"error: {message}")


FAILS_TWICE = "echo run >> $0; test $(wc -l < $0) -gt 2 || exit 7"  # $0 is a file


def test_failed_processes_are_started_again(tmp_path: Path) -> None:
    found = run("-n", 1, "--restart", 2, "--", "sh", "-c", FAILS_TWICE, tmp_path / "runs")
    assert (found.returncode, (tmp_path / "runs").read_text()) == (0, "run\n" * 3)
    assert "error: process 0 of 1 ended with exit status 7." in found.stderr
    assert [f"It is started again: restart {number} of 2." in found.stderr for number in (1, 2)] == [True, True]


@pytest.mark.slow
def test_the_job_fails_when_the_restarts_are_used_up(tmp_path: Path) -> None:
    found = run(
        "-n",
        2,
        "--restart",
        1,
        "--",
        "sh",
        "-c",
        f"test $SLURM_PROCID = 0 || {{ {FAILS_TWICE}; }}; sleep 60",
        tmp_path / "runs",
    )
    assert (found.returncode, (tmp_path / "runs").read_text()) == (7, "run\n" * 2)


def test_no_process_is_started_again_when_one_has_ended_well(tmp_path: Path) -> None:
    text = "test $SLURM_PROCID = 0 || { sleep 2; exit 5; }"
    found = run("-n", 2, "--restart", 3, "--", "sh", "-c", text)
    assert found.returncode == 5 and "started again" not in found.stderr


@pytest.mark.slow
def test_a_process_that_stays_stopped_is_started_again(tmp_path: Path) -> None:
    text = "test -e $0 && exit 0; touch $0; kill -STOP $$"
    found = run("-n", 1, "--restart", 1, "--", "sh", "-c", text, tmp_path / "stopped")
    assert found.returncode == 0 and "was ended by signal 9" in found.stderr


def test_a_dry_run_with_restarts_shows_the_service(tmp_path: Path, capsys: Capture) -> None:
    file = script(tmp_path, "")
    assert main(["launch", "-n", "2", "--restart", "1", "--dry-run", "--json", str(file)]) == 0
    shown = documents.document(capsys.readouterr().out)
    first, second = (each["environment"] for each in shown["processes"])
    assert first["JAX_COORDINATOR_ADDRESS"] == second["JAX_COORDINATOR_ADDRESS"] == shown["coordinator"][-2]
    assert first["JAX_COORDINATOR_BIND_ADDRESS"] != first["JAX_COORDINATOR_ADDRESS"]
    assert first["JAX_ENABLE_RECOVERABILITY"] == second["JAX_ENABLE_RECOVERABILITY"] == "1"


def test_some_numbers_of_a_job_whose_service_runs_elsewhere(tmp_path: Path, capsys: Capture) -> None:
    words = ["launch", "-n", "5", "--join", "10.0.0.1:4", "--numbers", "0,3..4", "--dry-run", "--json"]
    assert main([*words, str(script(tmp_path, ""))]) == 0
    shown = documents.document(capsys.readouterr().out)
    environments = [each["environment"] for each in shown["processes"]]
    assert [each["SLURM_PROCID"] for each in environments] == ["0", "3", "4"]
    assert {each["JAX_COORDINATOR_ADDRESS"] for each in environments} == {"10.0.0.1:4"}
    assert environments[0]["JAX_COORDINATOR_BIND_ADDRESS"].startswith("127.0.0.1:")
    assert {each["SLURM_NTASKS"] for each in environments} == {"5"} and not shown["coordinator"]


def test_json_needs_a_dry_run(capsys: Capture) -> None:
    assert main(["launch", "-n", "2", "--json", "sh"]) == 1
    error = documents.document(capsys.readouterr().err)
    assert (error["message"], error["cure"]) == ("--json goes with --dry-run only.", "leave out --json.")


def variables(environment: dict[str, str], devices: int = 4) -> dict[str, str]:
    return launch.variables(1, 2, devices=devices, coordinator="127.0.0.1:5", environment=environment)


def test_a_users_variables_are_kept() -> None:
    given = {"XLA_FLAGS": "--a=1 --xla_force_host_platform_device_count=8 --b", "JAX_PLATFORMS": "cuda"}
    found = variables({**given, "PJRT_NPROC": "99"})
    assert found["XLA_FLAGS"] == "--a=1 --b --xla_force_host_platform_device_count=4"
    assert found["JAX_PLATFORMS"] == "cuda" and found["PJRT_NPROC"] == "99"
    assert found["JAX_LOCAL_DEVICE_IDS"] == "4,5,6,7"
    assert "JAXCOMM_TRANSPORT" not in found
    assert int(variables({}, devices=64)["PJRT_NPROC"]) >= 128 and variables({})["JAX_PLATFORMS"] == "cpu"


@pytest.fixture
def four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5, 6})
    monkeypatch.setattr(processors, "_place", lambda number: (number % 2, number // 2, number))


@pytest.mark.usefixtures("four_processors")
def test_processors_are_divided_evenly_and_by_sockets() -> None:
    assert processors.shares(1) == [[0, 6, 3, 5]]
    assert processors.shares(2) == [[0, 6], [3, 5]]
    assert processors.shares(4) == [[0], [6], [3], [5]]
    assert processors.shares(8) == [[0], [0], [6], [6], [3], [3], [5], [5]]
    assert processors.shares(3) == processors.shares(6) == []


def test_each_process_runs_on_its_share_and_has_a_thread_for_each_processor(tmp_path: Path) -> None:
    file = script(tmp_path, "import os; print(sorted(os.sched_getaffinity(0)), os.environ['PJRT_NPROC'])")
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "PJRT_NPROC"}
    everything = sorted(os.sched_getaffinity(0))
    shares = processors.shares(2)
    for words, bound in (([], shares), (["--no-bind"], [])):
        job = subprocess.run(
            command("-n", 2, *words, file), capture_output=True, text=True, timeout=60, env=environment
        )
        expected = [f"{sorted(each)} {len(each)}" for each in bound] or [f"{everything} {os.cpu_count()}"] * 2
        assert sorted(job.stdout.splitlines()) == [f"[{process}] {each}" for process, each in enumerate(expected)]


@pytest.mark.usefixtures("four_processors")
@pytest.mark.parametrize(
    ("words", "platforms", "expected"),
    [
        ([], "cpu", [[0, 6], [3, 5]]),
        ([], "", [[0, 6], [3, 5]]),
        (["--no-bind"], "cpu", [None, None]),
        (["--join", "127.0.0.1:9"], "cpu", [None, None]),
        ([], "cuda", [None, None]),
    ],
)
def test_the_dry_run_shows_the_processors(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, words: list[str], platforms: str, expected: list[list[int] | None]
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert main(["launch", "-n", "2", *words, "--dry-run", "--json", "sh"]) == 0
    document = documents.document(capsys.readouterr().out)
    assert [each["processors"] for each in document["processes"]] == expected
    assert main(["launch", "-n", "2", *words, "--dry-run", "sh"]) == 0
    assert ("taskset --cpu-list 3,5 sh" in capsys.readouterr().out) == (expected[1] is not None)


def test_what_open_mpi_says_is_not_for_these_processes() -> None:
    kept = launch.inherited({"OMPI_COMM_WORLD_RANK": "3", "OMPI_MCA_orte_hnp_uri": "1.0;tcp://h", "PATH": "/bin"})
    assert kept == {"PATH": "/bin"}


def test_a_script_is_run_by_this_python(tmp_path: Path) -> None:
    file = script(tmp_path, "")
    assert launch.command([str(file), "-x"]) == [sys.executable, str(file), "-x"]
    assert launch.command(["a.b", "-x"], is_module=True) == [sys.executable, "-m", "a.b", "-x"]
    with pytest.raises(JaxcommError, match="there is no program"):
        launch.command(["a.b"])


def test_an_end_before_all_have_registered_leaves_the_service_alive() -> None:
    address = launch.local_coordinator()
    with Coordinator(address, 2) as service, ThreadPoolExecutor(2) as pool:
        assert service.report_end(1)  # it has not registered, so the report waits for process 0, and is given up
        clients = [
            _jax.get_distributed_runtime_client(address, process, init_timeout=20, shutdown_on_destruction=False)
            for process in range(2)
        ]
        for connected in [pool.submit(client.connect) for client in clients]:
            connected.result()
        assert service.report_end(1)
        assert [*clients[0].get_live_nodes([0, 1])] == [0]
        assert dict(clients[0].key_value_dir_get("jaxcomm/entered")).keys() == {"jaxcomm/entered/1"}
        clients.clear()  # before the service ends: JAX ends processes whose service has ended
