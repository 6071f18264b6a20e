"""The profile file: invalid values, saving and loading, and derived values."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcomm import profile
from jaxcomm.errors import ProfileError
from jaxcomm.measure import measure_devices
from jaxcomm.profile import lateness
from jaxcomm.profile.fit import rounds_and_share
from tests.plan.documents import replaced

DOCUMENT: dict[str, Any] = {
    "format": "jaxcomm-profile",
    "version": 1,
    "ranks": 4,
    "link": {
        "alpha_s": 3e-6,
        "beta_s_per_byte": 1e-10,
        "samples": [{"bytes": 1024, "seconds": 2e-5}],
        "residual": 0.01,
        "source": "made up",
        "op": "all_reduce",
        "schedule": "ring",
    },
    "arrivals": [[0.0, 0.001, 0.002, 0.009], [0.001, 0.0, 0.003, 0.008], [0.0, 0.004, 0.003, 0.002]],
    "warmup_dropped": 1,
    "buckets": [{"name": "layer0", "bytes": 4096, "ready_s": 0.01}],
    "collective": {"bytes": 1024, "seconds": 2e-5},
    "provenance": {"source": "test", "tool": "hand", "versions": {"jax": "0.10.2"}, "created": "2025-01-01T00:00:00"},
}
changed = partial(replaced, DOCUMENT)


def with_arrivals(rows: list[list[float]]) -> profile.Profile:
    return profile.validate(changed("arrivals", to=rows) | {"ranks": len(rows[0])}, "test")


REFUSED = [
    (changed("arrivals", 1, 2, to=math.inf), "arrivals[1][2] is inf"),
    (changed("arrivals", 1, 2, to=-1e-9), "arrivals[1][2] is -1e-09; it must be greater than or equal to 0"),
    (changed("arrivals", 1, 2, to="1"), "arrivals[1][2] is '1'"),
    (changed("arrivals", to={}), "arrivals is {}"),
    (changed("ranks", to=True), "ranks is True"),
    (changed("ranks", to=4.5), "ranks is 4.5"),
    (changed("ranks", to=...), "ranks is missing"),
    (changed("link", "op", to="gossip"), "link.op is 'gossip'"),
    (changed("link", "samples", 0, "bytes", to=0), "link.samples[0].bytes is 0"),
    (changed("buckets", 0, "ready", to=1.0), "buckets[0].ready is not a field"),
    (changed("collective", "seconds", to=math.nan), "collective.seconds is nan"),
    (changed("warmup_dropped", to=-1), "warmup_dropped is -1"),
    (changed("version", to=2), "version is 2; this jaxcomm reads version 1.\n  Cure: upgrade"),
    (changed("version", to="1"), "version is '1'"),
    (changed("format", to="plan"), "not a jaxcomm profile"),
    ([], "not a jaxcomm profile"),
]


@pytest.mark.parametrize(("document", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_refuses_what_cannot_be(document: Any, message: str, tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(document))
    with pytest.raises(ProfileError) as error:
        profile.load(file)
    assert str(error.value).startswith(f"{file}: ")
    assert message in str(error.value)
    assert "\n  Cure: " in str(error.value)


BROKEN_FILES = {
    "empty": (b"", "is empty"),
    "cut short": (json.dumps(DOCUMENT).encode()[:-40], "is not JSON"),
    "not utf-8": (b'{"format": "jaxcomm-profile\xff"}', "is not JSON"),
    "deep": (b'{"format":' + b"[" * 100_000, "is not JSON"),
    "doubled": (b'{"format": "jaxcomm-profile", "ranks": 4, "ranks": 8}', "'ranks' stands twice"),
    "long number": (b'{"format": "jaxcomm-profile", "ranks": ' + b"9" * 5000 + b"}", "is not JSON"),
}


@pytest.mark.parametrize(("data", "message"), BROKEN_FILES.values(), ids=BROKEN_FILES.keys())
def test_refuses_broken_files(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_bytes(data)
    with pytest.raises(ProfileError, match=message):
        profile.load(tmp_path / "profile.json")


def test_refuses_files_that_cannot_be_read_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = profile.validate(DOCUMENT, "test")
    with pytest.raises(ProfileError, match="cannot be read"):
        profile.load(tmp_path / "absent.json")
    with pytest.raises(ProfileError, match="cannot be written"):
        profile.save(good, tmp_path / "absent" / "profile.json")
    monkeypatch.setattr("jaxcomm.profile.files.MAX_BYTES", 100)
    profile.save(good, tmp_path / "profile.json")
    with pytest.raises(ProfileError, match="is larger than"):
        profile.load(tmp_path / "profile.json")


def test_saves_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "profile.json"
    profile.save(profile.validate(DOCUMENT, "test"), file)
    before = file.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ProfileError, match="No space left"):
        profile.save(profile.validate(changed("ranks", to=4), "test"), file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_survives_saving_and_hashes_its_content(tmp_path: Path) -> None:
    first = profile.validate(DOCUMENT, "test")
    profile.save(first, tmp_path / "profile.json")
    again = profile.read_any(tmp_path / "profile.json")
    assert again == first
    assert again.hash == first.hash
    assert profile.validate(changed("ranks", to=4), "test").hash == first.hash
    assert profile.validate(changed("arrivals", 0, 1, to=1e-9), "test").hash != first.hash
    assert json.loads(first.canonical_bytes()) == DOCUMENT


def test_json_schema_agrees_with_the_checks() -> None:
    schema = profile.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(DOCUMENT, schema)
    for document in (changed("ranks", to=1), changed("link", "op", to="gossip"), changed("more", to=1)):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(document, schema)


LATE = {
    "always": ([[0.0, 1.0, 5.0], [1.0, 0.0, 4.0]], 2, 2, [4.0, 3.0]),
    "sometimes": ([[0.0, 1.0, 5.0], [9.0, 0.0, 1.0], [0.0, 0.0, 2.0]], 2, 2, [4.0, 0.0, 2.0]),
    "tie of counts: the larger delay": ([[0.0, 1.0], [5.0, 0.0]], 0, 1, [0.0, 5.0]),
    "tie of times: nobody": ([[0.0, 1.0, 1.0]], 0, 0, [0.0]),
    "tie of late ranks: both": ([[0.0, 1.0, 0.0, 1.0]] * 2 + [[0.0, 1.0, 0.0, 3.0]], 3, 3, [0.0, 0.0, 2.0]),
    "tie of late ranks beats who is last once": ([[0.0, 0.0, 1.0, 1.0]] * 3 + [[0.0, 2.0, 1.0, 1.0]], 2, 3, [0.0] * 4),
    "tie with a rank that is not late": ([[0.0, 0.0, 0.0, 1.0]] * 2 + [[1.0, 0.0, 0.0, 1.0]], 3, 2, [1.0, 1.0, 0.0]),
    "nobody": ([[0.0, 0.0], [0.0, 0.0]], 0, 0, [0.0, 0.0]),
}


@pytest.mark.parametrize(("rows", "rank", "late_steps", "delays"), LATE.values(), ids=LATE.keys())
def test_straggler(rows: list[list[float]], rank: int, late_steps: int, delays: list[float]) -> None:
    late = profile.find_straggler(with_arrivals(rows))
    assert (late.rank, late.late_steps, late.steps) == (rank, late_steps, len(rows))
    assert late.share == late_steps / len(rows)
    assert late.delays == delays
    assert (late.median_s, late.mean_s, late.max_s) == (np.median(delays), np.mean(delays), np.max(delays))


def test_straggler_shows_drift_and_needs_arrivals() -> None:
    rising = [[0.0, 0.001 * step] for step in range(1, 41)]
    late = profile.find_straggler(with_arrivals(rising))
    assert late.first_quarter_s == pytest.approx(0.0055)
    assert late.last_quarter_s == pytest.approx(0.0355)
    with pytest.raises(ProfileError, match="test: has no arrivals"):
        profile.find_straggler(profile.validate(changed("arrivals", to=[]), "test"))


LATE_RANKS: dict[str, tuple[list[list[float]], tuple[int, ...]]] = {
    "two, by turns last": ([[0.0, 0.1, 5.0, 5.1], [0.1, 0.0, 5.2, 5.1], [0.0, 0.1, 5.0, 5.2]], (2, 3)),
    "always at the same time": ([[0.0, 0.02, 0.0, 0.0, 0.02, 0.0]] * 4, (4, 1)),
    "one before the other": ([[9.0, 0.1, 0.0, 5.0, 0.2, 0.1]] * 3, (3, 0)),
    "one only": ([[0.0, 0.1, 0.1, 5.0]] * 3, (3,)),
    "the other seldom": ([[0.0, 0.1, 4.0, 5.0]] + [[0.0, 0.1, 0.1, 5.0]] * 2, (3,)),
    "the other hardly": ([[0.0, 0.0, 0.1, 5.0]] * 3, (3,)),
    "a crowd without a bulk": ([[0.0, 1.0, 2.0, 3.0]] * 4, (3,)),
    "never more than half": ([[0.0, 0.0, 5.0, 6.0, 9.0]] * 3, (4,)),
    "of two ranks one": ([[0.0, 1.0]] * 3, (1,)),
    "nobody": ([[0.0, 0.0]], ()),
}


@pytest.mark.parametrize(("rows", "ranks"), LATE_RANKS.values(), ids=LATE_RANKS.keys())
def test_late_ranks(rows: list[list[float]], ranks: tuple[int, ...]) -> None:
    assert profile.late_ranks(with_arrivals(rows)) == ranks


def noisy(steps: int, ranks: int, **late: float) -> profile.Profile:
    """Ranks arrive in random order within some milliseconds. Named ranks are later: rank3=0.02 adds 20 ms to rank 3."""
    arrivals = np.random.default_rng(1).gamma(2.0, 2e-3, (steps, ranks))
    for name, seconds in late.items():
        arrivals[:, int(name.removeprefix("rank"))] += seconds
    return with_arrivals((arrivals - arrivals.min(axis=1, keepdims=True)).tolist())


@pytest.mark.parametrize(
    ("steps", "ranks"),
    [*itertools.product([6, 12, 50, 1000], [2, 3, 4, 8, 64]), *itertools.product([1, 2, 3], [8, 64])],
)
def test_nobody_is_late_among_ranks_that_are_alike(steps: int, ranks: int) -> None:
    found = noisy(steps, ranks)
    late = profile.find_straggler(found)
    assert (late.is_late, profile.late_ranks(found)) == (False, ())
    assert late.late_steps > 0 and late.chance >= 0.05


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 64])
@pytest.mark.parametrize("steps", [6, 12, 50, 1000])
def test_a_late_rank_is_found_among_ranks_that_come_in_any_order(steps: int, ranks: int) -> None:
    late = profile.find_straggler(noisy(steps, ranks, rank1=0.02))
    assert (late.rank, late.is_late) == (1, True)
    assert late.chance < 0.05


def test_two_late_ranks_that_take_turns_are_each_compared_with_the_others() -> None:
    assert set(profile.late_ranks(noisy(12, 8, rank1=0.05, rank6=0.05))) == {1, 6}


def test_who_is_always_last_by_next_to_nothing_is_not_late() -> None:
    rows = [[0.0, 1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 6e-3, 6.1e-3]] * 50
    late = profile.find_straggler(with_arrivals(rows))
    assert (late.rank, late.late_steps, late.is_late) == (7, 50, False)
    assert late.chance < 1e-30


@pytest.mark.parametrize(
    ("late_steps", "steps", "ranks", "expected"),
    [(3, 12, 8, 1.0), (4, 4, 4, 4**-3), (7, 12, 8, 1.7e-3), (0, 5, 8, 1.0), (50, 50, 2, 2.0**-49)],
)
def test_chance(late_steps: int, steps: int, ranks: int, expected: float) -> None:
    assert lateness.chance(late_steps, steps, ranks) == pytest.approx(expected, rel=0.05)


def test_at_most_eight_ranks_are_late() -> None:
    rows = [[0.0] * 20 + [1.0 + 0.1 * rank for rank in range(20)]]
    assert profile.late_ranks(with_arrivals(rows)) == tuple(range(32, 40))


OPS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "send_recv")


@given(
    op=st.sampled_from(OPS),
    schedule=st.sampled_from(["ring", "direct"]),
    ranks=st.integers(2, 1024),
    alpha=st.floats(1e-7, 1e-3),
    beta=st.floats(1e-12, 1e-8),
)
def test_fit_finds_the_link_that_made_the_samples(
    op: Any, schedule: Any, ranks: int, alpha: float, beta: float
) -> None:
    rounds, share = rounds_and_share(op, ranks, schedule)
    sizes = [2**power for power in range(6, 34, 3)]
    samples = [profile.Sample(bytes=size, seconds=rounds * alpha + share * size * beta) for size in sizes]
    link = profile.fit(samples, op, ranks, "made up", schedule)
    assert link.alpha_s == pytest.approx(alpha, rel=1e-6)
    assert link.beta_s_per_byte == pytest.approx(beta, rel=1e-6)
    assert link.residual < 1e-6
    assert (link.op, link.schedule, link.samples) == (op, schedule, samples)
    assert rounds_and_share("all_reduce", ranks) == (2 * ranks - 2, (2 * ranks - 2) / ranks)
    assert rounds_and_share("all_reduce", ranks, "direct") == (2, (2 * ranks - 2) / ranks)


def samples_of(seconds: Callable[[int], float], sizes: list[int]) -> list[profile.Sample]:
    return [profile.Sample(bytes=size, seconds=seconds(size)) for size in sizes]


def test_fit_is_never_negative_and_weighs_small_sizes() -> None:
    sizes = [2**power for power in range(8, 31)]
    # Only the largest size takes twice the model's time. The fit must follow the other sizes.
    bent = samples_of(lambda size: (2 if size == sizes[-1] else 1) * (1e-5 + 1e-9 * size), sizes)
    link = profile.fit(bent, "send_recv", 2, "bent")
    assert link.alpha_s == pytest.approx(1e-5, rel=0.1)
    errors = [np.log((link.alpha_s + link.beta_s_per_byte * each.bytes) / each.seconds) for each in link.samples]
    assert link.residual == pytest.approx(np.sqrt(np.mean(np.square(errors))))
    assert errors[-1] < -0.5
    falling = profile.fit(samples_of(lambda size: 1 / size, sizes[:4]), "send_recv", 2, "falling")
    assert falling.beta_s_per_byte == 0 and falling.alpha_s > 0 and "β too small to see" in falling.source
    steep = profile.fit(samples_of(lambda size: 1e-12 * size**2, sizes[:4]), "send_recv", 2, "steep")
    assert steep.alpha_s == 0 and steep.beta_s_per_byte > 0 and "α too small to see" in steep.source


def test_fit_takes_twice_and_half_of_the_models_time_alike() -> None:
    doubled = [(size, factor) for size in (2**10, 2**20, 2**30) for factor in (0.5, 1.0, 2.0)]
    noisy = [profile.Sample(bytes=size, seconds=factor * (1e-5 + 1e-9 * size)) for size, factor in doubled]
    link = profile.fit(noisy, "send_recv", 2, "noisy")
    assert (link.alpha_s, link.beta_s_per_byte) == pytest.approx((1e-5, 1e-9))
    assert link.residual == pytest.approx(np.sqrt(2 / 3) * np.log(2))


@pytest.mark.parametrize("seconds", [0.0, 1e-300, 9e-13])
def test_fit_refuses_times_that_nothing_takes(seconds: float) -> None:
    given = [profile.Sample(bytes=8, seconds=seconds), profile.Sample(bytes=2**20, seconds=1e-3)]
    with pytest.raises(ProfileError, match=r"a timed call took .* s; α and β need times from 1e-12 s on"):
        profile.fit(given, "all_reduce", 4, "x")


def test_fit_says_what_it_assumed() -> None:
    link = profile.fit([profile.Sample(bytes=10**9, seconds=0.015)], "all_reduce", 4, "one")
    assert link.alpha_s == 3e-6 and "α assumed 3 µs" in link.source
    assert 6 * 3e-6 + 1.5 * 1e9 * link.beta_s_per_byte == pytest.approx(0.015)
    short = profile.fit([profile.Sample(bytes=8, seconds=12e-6)], "all_reduce", 4, "short")
    assert short.alpha_s == pytest.approx(1e-6) and "α assumed 1 µs, half of the time" in short.source
    with pytest.raises(ProfileError, match="took 0 s"):
        profile.fit([profile.Sample(bytes=8, seconds=0.0)], "all_reduce", 4, "zero")
    with pytest.raises(ProfileError, match="no timed call"):
        profile.fit([], "all_reduce", 4, "none")


@pytest.mark.slow
def test_measures_this_machine() -> None:
    measured = measure_devices(4, sizes=[4096, 262147], steps=300, late={2: 0.002})
    assert measured.ranks == 4
    assert [sample.bytes for sample in measured.link.samples] == [4096, 262144]
    assert measured.link.schedule == "direct" and measured.link.beta_s_per_byte > 0
    assert measured.collective is not None and measured.collective.bytes == 262144
    assert len(measured.arrivals) == 300, "more than the core keeps, so in two loops"
    late = profile.find_straggler(measured)
    assert (late.rank, late.share > 0.9) == (2, True)
    assert 0.001 < late.median_s < 0.004
    assert "rank 2 made 2 ms late" in measured.provenance.source


def test_measures_gpus_and_nccl_beside_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = importlib.import_module("jaxcomm.measure.devices")
    monkeypatch.setattr("jaxcomm.gpu.core.why_off", lambda: "no CUDA device")
    with pytest.raises(ProfileError, match=r"no GPUs to measure: no CUDA device\.\n  Cure: "):
        measure_devices(2, on="cuda")
    monkeypatch.setattr("jaxcomm.gpu.core.why_off", lambda: None)
    monkeypatch.setenv("JAXCOMM_CERTIFICATE", str(tmp_path / "missing.json"))
    with pytest.raises(
        ProfileError,
        match=r"plans do not run on these GPUs: .* has not run here yet .*\n  Cure: run `jaxcomm check` first\.",
    ):
        measure_devices(2, on="cuda")
    # CPU devices stand for GPUs, because the measurement is the same for all devices.
    monkeypatch.setattr(module, "_devices", lambda count, on: jax.devices("cpu")[:count])
    measured = measure_devices(4, sizes=[4096, 262144], steps=2, on="cuda")
    assert [*measured.executors] == ["fused", "nccl"]
    for timed in measured.executors.values():
        assert [sample.bytes for sample in timed.samples] == [4096, 262144]
    assert [timed.schedule for timed in measured.executors.values()] == ["direct", "ring"]
    assert "4 GPUs" in measured.provenance.source


WRONG_ARGUMENTS = [
    ((1, [4], 1, {}), "devices is 1"),
    ((4, [], 1, {}), "sizes is empty"),
    ((4, [3], 1, {}), "sizes has 3"),
    ((4, [4], 0, {}), "steps is 0"),
    ((4, [4], 1, {4: 0.1}), "late names rank 4; the ranks are 0 to 3"),
    ((4, [4], 1, {0: math.nan}), "late by nan s"),
    ((4, [4], 1, {0: -1.0}), "late by -1.0 s"),
    ((64, [4], 1, {}), "devices is 64, but JAX has 8 CPU devices"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG_ARGUMENTS, ids=[message for _, message in WRONG_ARGUMENTS])
def test_measure_refuses(arguments: Any, message: str) -> None:
    devices, sizes, steps, late = arguments
    with pytest.raises(ProfileError, match=message):
        measure_devices(devices, sizes, steps, late=late)


def test_reading_profiles_imports_no_jax() -> None:
    script = "import sys, jaxcomm.profile; assert not {'jax', 'ortools'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
