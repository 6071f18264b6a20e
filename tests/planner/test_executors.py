"""Plans for CUDA devices from timed executors and NCCL's timed allreduce: the calls for which NCCL is chosen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, PartitionSpec

import jaxcomm
from jaxcomm import plan, planner, profile, simulate
from jaxcomm.cli import main
from jaxcomm.collectives.choice import SizedCall
from jaxcomm.errors import PlanError, ProfileError
from jaxcomm.plan import files
from jaxcomm.plan.executors import Executors, Timed
from jaxcomm.plan.values import Nccl, Plain
from jaxcomm.profile import Bucket, Link, Profile, Sample
from jaxcomm.profile.cluster import Cluster
from jaxcomm.report.plan import explanation
from jaxcomm.report.plan.considered import considered
from tests.cli import documents
from tests.gpu import certified

RANKS = 4
SIZES = [2**power for power in range(10, 31, 2)]
FIXTURES = Path(__file__).parents[1] / "fixtures"


def timed(alpha: float, beta: float) -> Link:
    """The link fitted to the times of a ring of `RANKS` ranks that follow the model exactly."""
    rounds, share = 2 * (RANKS - 1), 2 * (RANKS - 1) / RANKS
    samples = [Sample(bytes=size, seconds=rounds * alpha + share * size * beta) for size in SIZES]
    return profile.fit(samples, "all_reduce", RANKS, "made up")


def made(delay: float = 0.0, buckets: tuple[Bucket, ...] = (), **executors: Link) -> Profile:
    return Profile.model_validate(
        {
            "ranks": RANKS,
            "link": {"alpha_s": 1e-5, "beta_s_per_byte": 1e-10, "source": "made up"},
            "arrivals": [[0.0] * (RANKS - 1) + [delay]] * 4 if delay else [],
            "buckets": buckets,
            "executors": executors,
            "provenance": {"source": "test", "tool": "hand"},
        }
    )


# Our rounds start sooner, but NCCL moves more bytes per second, so each is faster for some sizes.
FUSED, NCCL = timed(2e-6, 4e-12), timed(6e-6, 2e-12)


def test_nccl_is_chosen_where_it_is_faster() -> None:
    result = planner.plan(made(fused=FUSED, nccl=NCCL))
    assert result.executors is not None and result.executors.own == "fused"
    assert (result.assumptions.alpha_s, result.assumptions.beta_s_per_byte) == pytest.approx((2e-6, 4e-12))
    specs = {size: result.collectives[result.index_for(size)].schedule for size in SIZES}
    assert isinstance(specs[SIZES[0]], Plain) and isinstance(specs[SIZES[-1]], Nccl)
    for size, spec in specs.items():
        nccl = result.executors.nccl_seconds(size)
        (row,) = simulate.sweep([RANKS], [size], [0.0], Cluster(2e-6, 4e-12), plan=result)
        ours = min(row.ring, row.halving_doubling, row.direct or np.inf)
        assert isinstance(spec, Nccl) == (nccl < ours), size
        assert row.plan == pytest.approx(min(nccl, ours), rel=0.025)
        assert (row.plan_kind == "nccl") == isinstance(spec, Nccl)
    plan.verify(result)


def test_a_schedule_that_uses_a_long_delay_beats_nccl() -> None:
    result = planner.plan(made(delay=1.0, fused=FUSED, nccl=timed(6e-6, 3.5e-12)))
    entry = result.collectives[result.index_for(2**28)]
    assert not isinstance(entry.schedule, Nccl | Plain)
    (nccl,) = (row for row in entry.alternatives if isinstance(row.schedule, Nccl))
    assert nccl.verdict == "slower" and entry.predicted.seconds < 0.98 * nccl.seconds


def lowered_for_gpus(ranks: int, nbytes: int, monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    """The lowered text of a psum on `ranks` GPUs. Its plan is for `RANKS` ranks and runs large calls by NCCL."""
    certified.use(monkeypatch, folder, "process")
    result = planner.plan(made(fused=FUSED, nccl=NCCL))
    mesh, rows = Mesh(np.array(jax.devices()[:ranks]), ("data",)), PartitionSpec("data")
    step = jax.shard_map(
        lambda x: jaxcomm.psum(x, "data", plan=result), mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False
    )
    x = jax.ShapeDtypeStruct((ranks * nbytes // 4,), jnp.float32)
    text: str = jax.jit(step).trace(x).lower(lowering_platforms=("cuda",)).as_text()
    return text


@pytest.mark.parametrize(("nbytes", "ours"), [(SIZES[0], True), (SIZES[-1], False)])
def test_on_gpus_psum_leaves_to_nccl_what_the_plan_gives_it(
    nbytes: int, ours: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = lowered_for_gpus(RANKS, nbytes, monkeypatch, tmp_path)
    assert ("@jaxcomm_collective(" in text, 'all_reduce"(' in text) == (ours, not ours)


def test_on_gpus_a_plan_for_other_types_names_neither_nccl_nor_a_schedule() -> None:
    whole = planner.plan(made(fused=FUSED, nccl=NCCL))
    result = whole.model_copy(update={"matches": whole.matches.model_copy(update={"dtypes": ("float32",)})})
    digest = jaxcomm.collectives.active_plan.plan_hash(result)
    calls = [SizedCall("all_reduce", RANKS, SIZES[-1], dtype, digest) for dtype in ("float32", None, "int8")]
    assert [*map(jaxcomm.collectives.choice.uses_nccl, calls)] == [True, True, False]
    assert jaxcomm.collectives.choice.choose(calls[-1]).plan == "direct"


def test_on_gpus_a_plan_for_other_ranks_is_refused_also_where_it_names_nccl(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(PlanError, match=f"is for {RANKS} ranks; this call has {RANKS // 2}"):
        lowered_for_gpus(RANKS // 2, SIZES[-1], monkeypatch, tmp_path)


def test_every_bucket_of_a_step_may_run_nccl() -> None:
    buckets = tuple(Bucket(name=f"b{i}", bytes=size, ready_s=i * 1e-3) for i, size in enumerate([2**12, 2**28]))
    result = planner.plan(made(buckets=buckets, fused=FUSED, nccl=NCCL))
    assert result.step is not None
    assert [isinstance(bucket.schedule, Nccl) for bucket in result.step.planned] == [False, True]
    assert result.step.lower_bound_seconds <= result.step.seconds


def nccl_only(times: dict[int, float], **fields: Any) -> Profile:
    """A profile with these times of NCCL's allreduce by MiB. Our own schedules take far longer."""
    samples = [Sample(bytes=mib * 2**20, seconds=seconds) for mib, seconds in times.items()]
    fast = Link(alpha_s=1e-6, beta_s_per_byte=1e-10, source="made up", samples=samples)
    return made(nccl=fast, **fields).model_copy(update={"link": Link(alpha_s=1.0, beta_s_per_byte=1e-6, source="slow")})


def test_a_step_of_calls_that_are_faster_apart_than_together_is_not_below_its_bound() -> None:
    buckets = tuple(Bucket(name=f"b{i}", bytes=mib * 2**20, ready_s=0.0) for i, mib in enumerate((1, 2)))
    step = planner.plan(nccl_only({1: 10e-6, 2: 19.7e-6, 3: 100e-6}, buckets=buckets)).step
    assert step is not None and step.seconds == pytest.approx(29.7e-6)
    assert step.lower_bound_seconds == pytest.approx(3 * 19.7e-6 / 2)  # all bytes at the best rate of any size


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    times=st.lists(st.floats(1e-6, 1e-3), min_size=4, max_size=4),
    own=st.tuples(st.sampled_from([0.0, 1e-6, 1e-5]), st.sampled_from([1e-11, 1e-10, 1e-9])),
    delays=st.lists(st.floats(0, 1e-3), min_size=1, max_size=4),
    sizes=st.lists(st.integers(2**10, 2**22), min_size=1, max_size=4),
)
def test_no_step_is_below_its_bound(
    times: list[float], own: tuple[float, float], delays: list[float], sizes: list[int]
) -> None:
    buckets = tuple(Bucket(name=f"b{i}", bytes=size, ready_s=i * 1e-4) for i, size in enumerate(sizes))
    source = nccl_only(dict(zip((1, 2, 3, 4), times, strict=True)), buckets=buckets)
    arrivals = [[0.0] * (RANKS - 1) + [delay] for delay in delays]
    link = Link(alpha_s=own[0], beta_s_per_byte=own[1], source="ours")
    step = planner.plan(source.model_copy(update={"arrivals": arrivals, "link": link}), time_limit=0.2).step
    assert step is not None and step.lower_bound_seconds <= step.seconds * (1 + 1e-8)


@pytest.mark.parametrize(("nbytes", "best"), [(2**12, "fused"), (2**30, "messages")])
def test_our_executor_is_the_faster_one_for_the_bytes_of_a_step(nbytes: int, best: str) -> None:
    source = made(buckets=(Bucket(name="all", bytes=nbytes, ready_s=0.0),), fused=FUSED, messages=NCCL)
    result = planner.plan(source)
    assert result.executors == Executors(own=best)
    assert result.assumptions.alpha_s == source.executors[best].alpha_s
    assert result.provenance.profile == source.hash
    assert not any(isinstance(entry.schedule, Nccl) for entry in result.collectives)


def test_a_noisy_table_counts_as_its_medians_and_never_falls() -> None:
    samples = [Sample(bytes=size, seconds=s) for size, s in [(1024, 5e-6), (1024, 9e-6), (1024, 6e-6), (4096, 3e-6)]]
    result = planner.plan(made(nccl=profile.fit(samples, "all_reduce", RANKS, "noisy")))
    assert result.executors is not None
    assert result.executors.nccl == (Timed(bytes=1024, seconds=3e-6), Timed(bytes=4096, seconds=3e-6))
    assert result.executors.nccl_seconds(2048) == 3e-6
    assert result.executors.nccl_seconds(8192) == pytest.approx(6e-6)  # beyond a flat table, times grow with bytes


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    alphas=st.tuples(*[st.floats(1e-6, 1e-4)] * 2),
    betas=st.tuples(*[st.floats(1e-12, 1e-9)] * 2),
    delay=st.sampled_from([0.0, 1e-4, 1e-2]),
)
def test_no_entry_is_slower_than_nccl_or_below_its_bound(
    alphas: tuple[float, float], betas: tuple[float, float], delay: float
) -> None:
    result = planner.plan(made(delay, fused=timed(alphas[0], betas[0]), nccl=timed(alphas[1], betas[1])))
    for entry in result.collectives:
        assert result.executors is not None
        nccl = result.executors.nccl_seconds(entry.predicted.reference_bytes)
        assert entry.predicted.lower_bound <= entry.predicted.seconds * (1 + 1e-8)
        assert entry.predicted.seconds <= nccl * (1 + 1e-8)
        assert sum(row.verdict == "chosen" for row in entry.alternatives) == 1
    again = files.decode(plan.encode(result).encode(), "plan.json")
    assert again == result and again.hash == result.hash


def test_a_profile_without_executors_leaves_them_undecided() -> None:
    assert planner.plan(made()).executors is None
    assert b"executors" not in made().canonical_bytes()


def test_on_cpus_the_entry_runs_its_own_schedule() -> None:
    result = planner.plan(made(nccl=timed(1e-9, 1e-15)))
    assert all(isinstance(entry.schedule, Nccl) for entry in result.collectives)
    assert {schedule.kind for schedule in result.schedules} <= {"ring", "halving_doubling", "direct"}
    x = np.random.default_rng(0).normal(size=(RANKS, 1000)).astype(np.float32)
    mesh = Mesh(np.array(jax.devices("cpu")[:RANKS]), ("data",))
    over: PartitionSpec = PartitionSpec("data")

    def step(x: jax.Array) -> jax.Array:
        return jaxcomm.psum(x, "data", plan=result)

    out = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=over, out_specs=over))(jnp.asarray(x))
    np.testing.assert_allclose(np.asarray(out)[0], x.sum(axis=0), rtol=1e-5, atol=1e-5)
    assert (np.asarray(out) == np.asarray(out)[0]).all()


def test_explain_says_what_was_timed_and_why_nccl() -> None:
    result = planner.plan(made(fused=FUSED, nccl=NCCL))
    text = " ".join(explanation.explanation(result).split())
    assert "executor fused" in text
    assert "NCCL's own allreduce was timed for 11 sizes from 1 KiB to 1 GiB" in text
    assert "On CUDA devices NCCL's own allreduce runs." in text
    runs = {row["runs"] for row in considered(result)["ranges"]}
    assert any(words.startswith("NCCL, elsewhere ") for words in runs)
    # No schedule saves time over the schedules without a delay, because no rank is late.
    assert all(row.split()[-1].strip("-%") in {"0", "1"} for row in explanation.summary(result).splitlines()[2:])


def test_a_slower_network_slows_what_was_timed() -> None:
    slowed = profile.at_rate(made(fused=FUSED, nccl=NCCL), 0.25)
    assert slowed.executors["fused"].beta_s_per_byte == pytest.approx(4 * 4e-12)
    assert slowed.executors["nccl"].alpha_s == pytest.approx(6e-6)
    assert slowed.executors["nccl"].samples[-1].seconds == pytest.approx(4 * NCCL.samples[-1].seconds, rel=0.01)


def halved(table: str) -> str:
    """The output of nccl-tests, changed so that calls start sooner and move half as many bytes per second."""
    lines = []
    for line in table.splitlines():
        words = line.split()
        if line.startswith(" ") and words[0].isdigit() and int(words[0]):
            time = f"{14 * 1.0 + 14 / 8 * int(words[0]) / 100e3:.2f}"  # microseconds of a ring of 8 ranks
            words[5] = words[9] = time
            line = "    ".join(["", *words])
        lines.append(line)
    return "\n".join(lines)


def test_from_the_output_of_nccl_tests_to_a_run_on_cpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out, ours = tmp_path / "profile.json", tmp_path / "plan.json", tmp_path / "fused.txt"
    table = FIXTURES / "nccl_tests.txt"
    ours.write_text(halved(table.read_text()))
    assert main(["profile", "import", str(table), "--out", str(file)]) == 0
    for name, times in {"nccl": table, "fused": ours}.items():
        assert main(["profile", "import", str(times), "--executor", name, "--into", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "NCCL's own allreduce" in shown and "fused executor" in shown
    assert len(profile.load(file).executors["nccl"].samples) == 11

    assert main(["plan", str(file), "--out", str(out)]) == 0
    assert "NCCL, elsewhere direct" in capsys.readouterr().out
    planned = plan.load(out)
    assert planned.executors is not None and planned.executors.own == "fused"
    assert planned.nccl_seconds(2**16) is None and planned.nccl_seconds(2**26) == pytest.approx(615.2e-6)

    assert main(["verify", str(out)]) == 0
    assert "schedules run by fused; 3 of 4 byte ranges by NCCL, whose sum is not ours" in capsys.readouterr().out
    assert main(["explain", str(out)]) == 0
    assert "On CUDA devices NCCL's own allreduce runs." in capsys.readouterr().out
    for command in (["what-if", str(file)], ["simulate", "--profile", str(file), "--plan", str(out)]):
        assert main(command) == 0
        assert "1 µs and 100 GB/s a round" in capsys.readouterr().out or command[0] == "what-if"
    events = ["simulate", "events", "--profile", str(file), "--plan", str(out), "--sizes", "64MiB"]
    assert main(events) == 0
    assert "plan: direct, not NCCL" in capsys.readouterr().out

    assert main(["bench", "--plan", str(out), "--sizes", "64KiB,4MiB", "--rounds", "1", "--json"]) == 0
    measured = documents.document(capsys.readouterr().out)
    assert [(row["bytes"], row["schedule"], row["wrong"]) for row in measured["rows"]] == [
        (2**16, "direct", 0),
        (2**22, "direct", 0),
    ]

    assert main(["profile", "import", str(table), "--executor", "nccl"]) == 1
    assert "--executor and --rail need --into" in capsys.readouterr().err


def test_an_executor_of_other_ranks_is_refused() -> None:
    with pytest.raises(ProfileError, match=r"has 4 ranks; nccl was timed on 8.\n  Cure: time it on 4 ranks"):
        profile.with_executor(made(), "nccl", NCCL, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": []}, r"executors.nccl has 0 samples of all_reduce; at least one timed all_reduce is needed"),
        ({"op": "broadcast"}, r"executors.nccl has 11 samples of broadcast"),
        ({"samples": [{"bytes": 8, "seconds": 0.0}]}, r"executors.nccl has a sample of 0 s"),
    ],
    ids=["none", "another collective", "no time"],
)
def test_times_that_cannot_be_are_refused(change: dict[str, object], message: str) -> None:
    document = made(nccl=NCCL).model_dump()
    document["executors"]["nccl"] |= change
    with pytest.raises(ProfileError, match=message):
        profile.validate(document, "profile.json")


@pytest.mark.parametrize(
    ("nccl", "message"),
    [
        ([], r"collectives\[\d+\].schedule.kind is nccl, but executors has no NCCL times"),
        ([(8, 1.0), (8, 1.0)], r"nccl\[1\].bytes is 8; sizes must ascend"),
        ([(8, 2.0), (16, 1.0)], r"nccl\[1\].seconds is 1, below that of fewer bytes"),
        ([(0, 1.0)], r"nccl\[0\].bytes is 0"),
    ],
    ids=["no table", "equal sizes", "falls", "no bytes"],
)
def test_a_broken_table_in_a_plan_is_refused(nccl: list[tuple[int, float]], message: str) -> None:
    document = json.loads(plan.encode(planner.plan(made(nccl=timed(1e-9, 1e-15)))))
    del document["hash"]
    document["executors"]["nccl"] = [{"bytes": size, "seconds": seconds} for size, seconds in nccl]
    with pytest.raises(PlanError, match=message):
        files.validate(document, "plan.json")
