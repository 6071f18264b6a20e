"""A prefix before each line, from a launcher, log collector or mail program, does not change the imported profile."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcomm import profile
from jaxcomm.errors import ProfileError
from jaxcomm.profile.importers import _IMPORTERS, common_prefix

FIXTURES = Path(__file__).parents[1] / "fixtures"
FORMATS = [
    "nccl_tests.txt",
    "nvidia_smi_topo.txt",
    "pair_rates_of_gpus.txt",
    "pair_rates_of_hosts.txt",
    "training_log.txt",
    "nccl_topology.xml",
]


def counted(form: str) -> Callable[[int], str]:
    """Returns a function that makes line n's prefix: `form` with n mod 60 at %d."""
    return lambda line: form.replace("%d", f"{line % 60:02d}")


PREFIXES: dict[str, Callable[[int], str]] = {
    "kubectl --prefix": counted("[pod/nccl-test-launcher-abcde/mpi-launcher] "),
    "kubectl --timestamps": counted("2026-01-02T03:04:%d.123456789Z "),
    "stern": counted("nccl-test-launcher-x7k2p mpi-launcher "),
    "docker compose": counted("trainer-1  | "),
    "docker compose, in colour": counted("\x1b[36mtrainer-1  |\x1b[0m "),
    "foreman": counted("03:04:%d trainer.1 | "),
    "srun --label": counted("0: "),
    "srun --label, of more ranks": counted(" 3: "),
    "mpirun --tag-output": counted("[1,0]<stdout>:"),
    "mpirun --timestamp-output": counted("Fri Jan  2 03:04:%d 2026[1,0]<stdout>:"),
    "prterun --output tag": counted("[prterun-node-a-4242@1,0]<stdout>: "),
    "mpiexec -l, of Hydra": counted("[0] "),
    "torchrun": counted("[default0]:"),
    "torch's rank": counted("[rank0]: "),
    "torchx": counted("trainer/0 "),
    "Ray": counted("\x1b[36m(RayTrainWorker pid=4242, ip=192.0.2.1)\x1b[0m "),
    "pdsh, clush, DeepSpeed": counted("node-a.example: "),
    "parallel --tag": counted("node a\t"),
    "journald": counted("Jan 02 03:04:%d node-a nccl.sh[4242]: "),
    "syslog": counted("2026-01-02T03:04:%d.123456+00:00 node-a nccl.sh: "),
    "ts": counted("Jan 02 03:04:%d "),
    "containerd": counted("2026-01-02T03:04:%d.123456789+00:00 stdout F "),
    "GitLab": counted("2026-01-02T03:04:%d.123456Z 00O "),
    "GitHub": counted("test\tRun it\t2026-01-02T03:04:%d.1234567Z "),
    "Python's logging": counted("2026-01-02 03:04:%d,123 - bench.run - INFO - "),
    "Python's logging, bare": counted("INFO:bench.run:"),
    "brackets": counted("[2026-01-02 03:04:%d,123] [INFO] "),
    "glog": counted("I20260102 03:04:%d.123456  4242 bench.cc:17] "),
    "mail": counted("> "),
    "mail in mail": counted(">> "),
    "indented": counted("    "),
    "a mixture of ranks": lambda line: f"{line % 2}: ",
    "pods in a mixture of containers": lambda line: f"[pod/w-{line % 3}/main] ",
    "several, one before the other": counted("node-a: [pod/x/y] 2026-01-02T03:04:%dZ > "),
}


def prefixed(text: str, before: Callable[[int], str]) -> str:
    """The text with a prefix before every line, and without blanks at the ends of lines, which some tools strip."""
    return "".join(f"{(before(i) + line).rstrip(' ')}\n" for i, line in enumerate(text.splitlines()))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("before", PREFIXES.values(), ids=PREFIXES.keys())
def test_a_prefix_of_all_lines_changes_nothing(before: Callable[[int], str], name: str, tmp_path: Path) -> None:
    text = (FIXTURES / name).read_text()
    (tmp_path / name).write_text(text)
    bare = profile.read_any(tmp_path / name)
    (tmp_path / name).write_text(prefixed(text, before))
    found = profile.read_any(tmp_path / name)
    created = {"provenance": bare.provenance.model_copy(update={"created": ""})}
    assert found.model_copy(update=created) == bare.model_copy(update=created)


@pytest.mark.parametrize("path", [*FIXTURES.iterdir()], ids=lambda path: path.name)
def test_files_without_a_prefix_stay_as_they_are(path: Path) -> None:
    if path.name != "nccl_tests_old_all_gather.txt":  # this fixture has the prefixes of srun --label
        assert common_prefix.stripped(path.read_bytes()) == path.read_bytes()


def test_lines_without_the_prefix_may_stand_between(tmp_path: Path) -> None:
    table = prefixed((FIXTURES / "nccl_tests.txt").read_text(), counted("[1,0]<stdout>:"))
    (tmp_path / "file").write_text(f"$ mpirun --tag-output all_reduce_perf\n{table}mpirun: all processes ended\n")
    assert profile.read_any(tmp_path / "file").ranks == 8


def test_errors_name_the_lines_of_the_file(tmp_path: Path) -> None:
    table = (FIXTURES / "nccl_tests.txt").read_text().replace("-1    28.04", "-1        x")
    (tmp_path / "file").write_text(prefixed(table, counted("[pod/x/y] ")))
    with pytest.raises(ProfileError, match="file:21: '4096"):
        profile.read_any(tmp_path / "file")


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_damaged_files_are_read_or_refused(data: st.DataObject) -> None:
    text = (FIXTURES / data.draw(st.sampled_from(FORMATS))).read_text()
    text = prefixed(text, data.draw(st.sampled_from([*PREFIXES.values()]))) if data.draw(st.booleans()) else text
    lines = text.splitlines()
    shuffler = random.Random(data.draw(st.integers(0, 2**32)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        match data.draw(st.sampled_from(["cut", "twice", "lost", "number", "swap", "noise"])):
            case "cut":
                lines[at] = lines[at][: data.draw(st.integers(0, len(lines[at])))]
            case "twice":
                lines[at:at] = lines[at : at + data.draw(st.integers(1, 12))]
            case "lost":
                lines[at] = ""
            case "number":
                lines[at] = re.sub(r"\d+", str(data.draw(st.integers(-1, 10**20))), lines[at], count=1)
            case "swap":
                shuffler.shuffle(lines)
            case "noise":
                lines[at] += data.draw(st.text(max_size=20))
    content = common_prefix.stripped("\n".join(lines).encode("utf-8", errors="replace"))
    for importer in _IMPORTERS:
        if importer.sniff(content):
            try:
                importer.read(content, "file", "")
            except ProfileError as error:
                assert "\n  Cure: " in str(error)
