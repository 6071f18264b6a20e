"""Profiles from the files of other tools: the imported values, and one clear error for each kind of invalid file."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from jax.profiler import ProfileData

from jaxcomm import profile
from jaxcomm.errors import ProfileError
from jaxcomm.profile.importers import hlo, xplane

FIXTURES = Path(__file__).parents[1] / "fixtures"
A100_LOG = Path(__file__).parents[2].parent / "shared" / "data" / "log_4_a100_llama3.2-3B.txt"


def test_real_log_of_four_a100() -> None:
    if not A100_LOG.exists():
        pytest.skip("the log of 4 A100s is not beside this repository; the synthetic log covers its parser")
    measured = profile.read_any(A100_LOG)
    late = profile.find_straggler(measured)
    assert (measured.ranks, measured.warmup_dropped) == (4, 1)
    assert (late.rank, late.late_steps, late.steps) == (2, 49, 49)
    assert late.median_s == pytest.approx(6.97e-3, abs=5e-6)
    assert late.mean_s == pytest.approx(9.50e-3, abs=5e-6)
    assert late.max_s == pytest.approx(22.45e-3, abs=5e-6)
    assert late.first_quarter_s > 3 * late.last_quarter_s
    assert measured.collective is not None
    assert measured.collective.bytes == 12549804 * 1024
    assert measured.collective.seconds == pytest.approx(117.5e-3, abs=5e-5)
    ring_s = 6 * measured.link.alpha_s + 1.5 * measured.collective.bytes * measured.link.beta_s_per_byte
    assert ring_s == pytest.approx(measured.collective.seconds)
    assert "α assumed 3 µs" in measured.link.source


def test_synthetic_log() -> None:
    measured = profile.read_any(FIXTURES / "training_log.txt")
    assert (measured.ranks, measured.warmup_dropped, len(measured.arrivals)) == (3, 1, 6)
    assert measured.arrivals[0] == pytest.approx([0.003, 0.005, 0.0])
    late = profile.find_straggler(measured)
    assert (late.rank, late.late_steps) == (1, 6)
    assert late.delays == pytest.approx([0.002, 0.003, 0.004, 0.005, 0.006, 0.007])
    assert measured.collective == profile.Collective(bytes=2**26, seconds=0.020)
    assert "1 incomplete dropped" not in measured.link.source, "a record cut short at the end is no step"
    assert measured.provenance.source == "training_log.txt"


NCCL = {"nccl_tests.txt": (8, "all_reduce"), "nccl_tests.json": (8, "all_reduce")}
NCCL["nccl_tests_old_all_gather.txt"] = (8, "all_gather")


@pytest.mark.parametrize(("name", "ranks", "op"), [(name, *expected) for name, expected in NCCL.items()])
def test_nccl_tests(name: str, ranks: int, op: str) -> None:
    measured = profile.read_any(FIXTURES / name)
    assert (measured.ranks, measured.link.op, len(measured.link.samples)) == (ranks, op, 11)
    assert measured.link.alpha_s == pytest.approx(2e-6, rel=1e-3)
    assert measured.link.beta_s_per_byte == pytest.approx(5e-12, rel=1e-3)
    assert measured.link.residual < 1e-3
    assert measured.arrivals == []
    if op == "all_reduce":
        assert measured.collective is not None and measured.collective.bytes == 2**30
    else:
        assert measured.collective is None


def test_hosts_of_nccl_tests_make_a_topology(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(TWO_HOSTS)
    table = profile.read_any(tmp_path / "file")
    json = profile.read_any(FIXTURES / "nccl_tests.json")
    for measured in (table, json):
        assert measured.hosts == ["node-a"] * 4 + ["node-b"] * 4
        assert measured.topology is not None
        assert (measured.topology.hosts, measured.topology.nic) == ((0,) * 4 + (1,) * 4, "host")
        assert measured.topology.slow == 1, "times of the slowest hop say nothing of links within a host"
        assert "of 2 hosts, timed together" in measured.link.source
    one = profile.read_any(FIXTURES / "nccl_tests.txt")
    assert (one.hosts, one.topology) == (["node-a"] * 8, None)
    (tmp_path / "file").write_text(TWO_HOSTS.replace(DEVICES[: DEVICES.index("\n") + 1], ""))
    lost = profile.read_any(tmp_path / "file")
    assert (lost.ranks, lost.hosts, lost.topology) == (8, [], None), "the line of a device is lost, and its host"


def test_cpu_trace() -> None:
    measured = profile.read_any(FIXTURES / "cpu.xplane.pb")
    late = profile.find_straggler(measured)
    assert measured.ranks == 8
    assert (late.rank, late.late_steps, late.steps) == (3, 5, 5)
    assert 0.010 < late.median_s < 0.030
    assert [sample.bytes for sample in measured.link.samples] == [4096, 2**20]
    assert measured.collective is not None and measured.collective.bytes in (4096, 2**20)
    assert measured.provenance.versions.keys() == {"jax", "jaxlib"}


def test_impossible_sizes_in_a_trace_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = {at: each._replace(bytes=2**61) for at, each in hlo.allreduces(TRACE).items()}
    monkeypatch.setattr(hlo, "allreduces", lambda data: huge)
    measured = profile.read_any(FIXTURES / "cpu.xplane.pb")
    assert huge and measured.arrivals and measured.collective is None and not measured.link.samples


def test_trace_folder(tmp_path: Path) -> None:
    trace = (FIXTURES / "cpu.xplane.pb").read_bytes()
    for run, hosts in (("plugins/profile/1", ["a"]), ("plugins/profile/2", ["a"]), ("plugins/profile/3", ["a", "b"])):
        (tmp_path / run).mkdir(parents=True)
        for host in hosts:
            (tmp_path / run / f"{host}.xplane.pb").write_bytes(trace)
        if len(hosts) == 1:
            assert profile.read_any(tmp_path).ranks == 8
    with pytest.raises(ProfileError, match=r"holds 2 \.xplane\.pb files"):
        profile.read_any(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ProfileError, match=r"holds 0 \.xplane\.pb files"):
        profile.read_any(tmp_path / "empty")


def gpu_trace(durations_us: list[list[int]], kernel: str) -> bytes:
    """An XSpace with one plane per GPU and one kernel per step. The clock of device d is d seconds ahead."""
    planes = []
    for device, column in enumerate(zip(*durations_us, strict=True)):
        events = "".join(
            f"events {{ metadata_id: 1 offset_ps: {(step + 1) * 10**11} duration_ps: {us * 10**6} }}"
            for step, us in enumerate(column)
        )
        planes.append(
            f'planes {{ name: "/device:GPU:{device}" '
            f'event_metadata {{ key: 1 value {{ id: 1 name: "{kernel}" }} }} '
            f'lines {{ id: 20 name: "Stream #20(Compute)" timestamp_ns: {device * 10**9} {events} }} }}'
        )
    return ProfileData.text_proto_to_serialized_xspace("\n".join(planes))


@pytest.mark.parametrize("kernel", ["ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclArgs)", "ncclKernel_AllReduce_RING"])
def test_gpu_trace_needs_no_common_clock(kernel: str, tmp_path: Path) -> None:
    (tmp_path / "gpu.xplane.pb").write_bytes(gpu_trace([[900, 400, 1000], [800, 400, 900]], kernel))
    measured = profile.read_any(tmp_path / "gpu.xplane.pb")
    assert measured.arrivals == [pytest.approx([1e-4, 6e-4, 0]), pytest.approx([1e-4, 5e-4, 0])]
    assert profile.find_straggler(measured).rank == 1
    assert "β assumed" in measured.link.source


def test_gpu_trace_without_collectives(tmp_path: Path) -> None:
    (tmp_path / "gpu.xplane.pb").write_bytes(gpu_trace([[900, 400]], "loop_fusion"))
    with pytest.raises(ProfileError, match="holds no collective in which two devices meet"):
        profile.read_any(tmp_path / "gpu.xplane.pb")


def log(*records: tuple[int, int, str, str]) -> str:
    return "\n".join(f"Rank {r} | Step {s} | AR Time: {ms} ms | AR Buffer Size: {kb} KB" for r, s, ms, kb in records)


GOOD_STEPS = [(rank, step, "10.0", "64.00") for step in range(3) for rank in range(2)]
TABLE = (FIXTURES / "nccl_tests.txt").read_text()
GATHERED = (FIXTURES / "nccl_tests_old_all_gather.txt").read_text()
TRACE = (FIXTURES / "cpu.xplane.pb").read_bytes()
JSON = (FIXTURES / "nccl_tests.json").read_text()


TWO_HOSTS = re.sub(r"on     node-a( device  [4-7])", r"on     node-b\1", TABLE)
DEVICES = "".join(re.findall("(?m)^#  Rank.*\n", TABLE))
ALONE = "#  Rank  0 Group  0 Pid   4242 on     node-a device  0 [0000:00:00] NVIDIA Example GPU\n"


def without(lines: str) -> str:
    """The table without the lines that begin with a match of `lines`, a regular expression."""
    return re.sub(f"(?m)^(?:{lines}).*\n", "", TABLE)


REFUSED = {
    "nothing known": ("hello", "no known format. Looked for: profile.json"),
    "log: nan": (log(*GOOD_STEPS, (0, 3, "nan", "64.00")), "file:7: AR Time is nan"),
    "log: negative": (log((0, 0, "-3.0", "64.00")), "file:1: AR Time is -3.0"),
    "log: no size": (log((0, 0, "3.0", "0.00")), "file:1: AR Buffer Size is 0.00"),
    "log: one rank": (log((0, 0, "3.0", "64.00")), "complete records of 1 rank"),
    "log: two sizes": (log(*GOOD_STEPS, (0, 3, "10.0", "32.00")), "file:7: AR Buffer Size is 32768 bytes, but 65536"),
    "log: rank never there": (log((0, 0, "3.0", "64.00"), (2, 0, "3.0", "64.00")), "step 0 has no record of rank 1"),
    "log: rank too large": (log((99999, 0, "3.0", "64.00")), "file:1: rank is 99999"),
    "log: nothing whole": ("Rank 0 | Step 0 | AR Time: 3.0", "complete records of 0 rank"),
    "nccl: no rows": (TABLE.split("(us)")[0], "file:17: holds no timed size below the header"),
    "nccl: bad row": (TABLE.replace("-1    28.04", "-1        x"), "file:21: '4096"),
    "nccl: cpu times": (TABLE.replace("   time   algbw", "cputime   algbw"), "file:17: the times are the CPU's"),
    "nccl: unknown ranks": (without("# (?: Rank|nThread)| +[0-9]{5} +| +[0-9]{6}"), "unknown; the bandwidths may be"),
    "nccl: one rank": (
        without("#  Rank  [1-7]| +[0-9]{5} +| +[0-9]{6}"),
        "lists 1 ranks; the bandwidths may be those of",
    ),
    "nccl: two collectives": (TABLE + "# Collective test starting: broadcast_perf\n", "times all_reduce and broadcast"),
    "nccl: not named": (GATHERED.replace("all_gather_perf", ""), "does not say which collective"),
    "nccl: without MPI": (TABLE.replace(DEVICES, ALONE * 4), "4 processes ran alone, each as rank 0 of one"),
    "nccl: without MPI, on two hosts": (
        TABLE.replace(DEVICES, ALONE + ALONE.replace("node-a", "node-b")),
        "file:8: rank 0 is on 'node-b' here and on 'node-a' above",
    ),
    "nccl json: too many ranks": (JSON.replace('"ngpus":4', '"ngpus":400000'), "2 processes have 400000 ranks each"),
    "nccl json: cut short": (JSON[:-900], "cannot be read as nccl-tests' JSON"),
    "nccl json: nan": (re.sub('"time":[0-9.]+', '"time":"nan"', JSON), "size 1024 took nan"),
    "nccl json: infinite": (JSON.replace('"size":1024', '"size":1e999'), "cannot be read as nccl-tests' JSON"),
    "nccl json: no devices": (JSON.replace('"devices"', '"gpus"'), "no 'devices'"),
    "trace: cut short": ((FIXTURES / "cpu.xplane.pb").read_bytes()[:-500], "cannot be decoded as an XSpace"),
}


@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refuses(content: str | bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ProfileError) as error:
        profile.read_any(file)
    assert message in str(error.value)
    assert "\n  Cure: " in str(error.value)


def test_log_keeps_what_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text(log(*GOOD_STEPS, *GOOD_STEPS[:-1]))  # a second epoch, in which the last step lacks a record
    measured = profile.read_any(file)
    assert len(measured.arrivals) == 5
    assert "5 steps after 0 of warm-up, 1 incomplete dropped" in measured.link.source


def test_warmup_is_only_what_leads(tmp_path: Path) -> None:
    slow = [(rank, step, "100.0" if step in (0, 1, 5) else "10.0", "64.00") for step in range(9) for rank in range(2)]
    (tmp_path / "log").write_text(log(*slow))
    measured = profile.read_any(tmp_path / "log")
    assert (measured.warmup_dropped, len(measured.arrivals)) == (2, 7)


def test_old_table_names_its_collective_by_its_bandwidth(tmp_path: Path) -> None:
    (tmp_path / "table").write_text(TABLE.replace("all_reduce_perf", ""))
    assert profile.read_any(tmp_path / "table").link.op == "all_reduce"


def test_lost_device_lines_are_made_up_for_by_the_bandwidths(tmp_path: Path) -> None:
    for number, lost in enumerate(("#  Rank  3", "#  Rank  [0-6]", "#  Rank|# nThread", "#  Rank")):
        (tmp_path / str(number)).write_text(without(lost))
        assert profile.read_any(tmp_path / str(number)).ranks == 8


@pytest.mark.parametrize("line", ["#  Rank  0", "#  Rank  3", "#  Rank  7", "#       size", "# nThread"])
def test_a_line_that_lost_its_number_sign_is_still_read(line: str, tmp_path: Path) -> None:
    small = without(" +[0-9]{5} +| +[0-9]{6}")  # bandwidths of small sizes have too few digits to show the ranks
    (tmp_path / "table").write_text(small.replace(line, line.replace("#", " ", 1)))
    assert profile.read_any(tmp_path / "table").ranks == 8


@pytest.mark.parametrize("names", [("TREE", "RING", "LL", "SIMPLE"), ("0", "1", "0", "2")], ids=["names", "numbers"])
def test_alpha_and_beta_are_those_of_the_ring_with_one_protocol(names: tuple[str, ...], tmp_path: Path) -> None:
    tree, ring, low, simple = names
    sizes = [2**power for power in range(10, 31, 2)]
    took = [(tree, low)] * 3 + [(ring, low)] * 3 + [(ring, simple)] * 5
    lines = [
        f"n:1:1 [0] NCCL INFO AllReduce: {size} Bytes -> Algo {algorithm} proto {protocol} channel{{Lo..Hi}}={{0..0}}"
        for size, (algorithm, protocol) in zip(sizes, took, strict=True)
    ]
    table = TABLE
    for size in sizes[:6]:  # times of a tree and of the LL protocol: no ring of 2 µs and 200 GB/s takes 9 µs
        table = re.sub(rf"(?m)^( +{size} .*? -1) +[0-9.]+ ", r"\1     9.00 ", table)
    (tmp_path / "table").write_text("\n".join([*lines, table]))
    link = profile.read_any(tmp_path / "table").link
    assert (link.alpha_s, link.beta_s_per_byte) == (pytest.approx(2e-6, rel=0.02), pytest.approx(5e-12, rel=1e-3))
    assert link.residual < 1e-3 and len(link.samples) == 11
    assert "Ring with SIMPLE" in link.source and "; with LL, α 0.643 µs" in link.source
    (tmp_path / "table").write_text(table)
    assert profile.read_any(tmp_path / "table").link.residual > 0.2


@pytest.mark.parametrize(
    "config",
    [
        'site = "4:psum 10:d\\22\\C3\\A4\\\\ \\0A3:s 10:all_reduce 3:sum 0: 0 2 2 0 0 0 1 0 2 0 2 0 3 0 0 0 0 "',
        'axes = "data", groups = array<i32: 0, 1, 2, 3>, kind = "all_reduce", sizes = array<i32: 2, 2>',
    ],
    ids=["CPU", "GPU"],
)
def test_own_calls_in_a_trace_are_found_by_their_target(config: str) -> None:
    own = message(
        (1, b"jaxcomm.3"), (2, b"custom-call"), (3, SHAPE), (28, b"jaxcomm_collective"), (43, f"{{{config}}}".encode())
    )
    other = message((1, b"other.4"), (2, b"custom-call"), (3, SHAPE), (28, b"topk"))
    trace = message((1, plane_with_program("jit_f(7)", own, other)))
    assert hlo.allreduces(trace) == {("jit_f(7)", "jaxcomm.3"): hlo.HloAllReduce(2 * 3 * 4, ((0, 1), (2, 3)))}

    def event(name: str, start_ns: int, device: int) -> SimpleNamespace:
        stats = {"hlo_op": name, "hlo_module": "jit_f", "program_id": 7, "run_id": -5, "device_ordinal": device}
        return SimpleNamespace(name=name, start_ns=start_ns, end_ns=start_ns + 10, stats=stats.items())

    lines = [SimpleNamespace(events=[event("jaxcomm.3", 100 * device, device)]) for device in range(4)]
    calls = list(xplane._cpu_calls(lines, hlo.allreduces(trace)))
    assert [(call.op.devices, call.device, call.start_s) for call in calls] == [
        ((0, 1), 0, 0.0),
        ((0, 1), 1, 1e-7),
        ((2, 3), 2, 2e-7),
        ((2, 3), 3, 3e-7),
    ]


def message(*fields: tuple[int, bytes]) -> bytes:
    """A protobuf message of length-delimited fields."""

    def varint(value: int) -> bytes:
        return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)

    return b"".join(varint(number << 3 | 2) + varint(len(value)) + value for number, value in fields)


SHAPE = b"\x10\x0b" + message((3, b"\x02\x03"))  # f32[2,3]


def plane_with_program(name: str, *instructions: bytes) -> bytes:
    module = message((1, b"jit_f"), (3, message(*((2, instruction) for instruction in instructions))))
    stat = message((6, message((1, module))))
    metadata = message((2, message((2, name.encode()), (5, stat))))
    return message((2, b"/host:metadata"), (4, metadata))
