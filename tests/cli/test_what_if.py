"""Changed profiles, and the predictions of `jaxcomm what-if` for these profiles."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcomm import planner, profile, simulate
from jaxcomm.cli import main
from jaxcomm.errors import ProfileError
from jaxcomm.profile import Collective, Link, Profile, Provenance, Rail, Sample
from jaxcomm.profile.timed_schedules import ScheduleSample, TimedSchedule, TimedSchedules
from tests.cli import documents

Capture = pytest.CaptureFixture[str]

ALPHA, BETA = 1e-6, 1e-10
USES_A_DELAY = {"straggler", "hybrid", "broadcast"}


def make(arrivals: list[list[float]], ranks: int = 8) -> Profile:
    return Profile(
        ranks=ranks,
        link=Link(alpha_s=ALPHA, beta_s_per_byte=BETA, source="a link"),
        arrivals=[[time - min(row) for time in row] for row in arrivals],
        provenance=Provenance(source="a test", tool="pytest"),
    )


def one_late(seconds: float, ranks: int = 8, rank: int = 3) -> Profile:
    return make([[seconds * (r == rank) for r in range(ranks)]] * 4, ranks)


def on_rails(*names: str) -> Profile:
    """A profile whose rails take 1 ms and move 1 GB/s each."""
    table = [Sample(bytes=size, seconds=1e-3 + size / 1e9) for size in (1, 10**6, 10**9)]
    rails = [Rail(name=name, transport="tcp", latency=table, bytes_per_s=1e9) for name in names]
    return make([]).model_copy(update={"rails": rails})


def kinds(given: Profile) -> set[str]:
    return {entry.schedule.kind for entry in planner.plan(given).collectives}


def rows(capsys: Capture, tmp_path: Path, given: Profile, *words: str) -> list[dict]:
    profile.save(given, tmp_path / "profile.json")
    capsys.readouterr()
    assert main(["what-if", str(tmp_path / "profile.json"), "--json", *words]) == 0
    found = documents.document(capsys.readouterr().out)
    assert (found["profile"], found["ranks"]) == (given.hash, given.ranks)
    return found["rows"]


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    delays=st.lists(st.floats(1e-3, 1), min_size=1, max_size=5),
    ranks=st.sampled_from([2, 3, 5, 8]),
    data=st.data(),
)
def test_without_the_only_straggler_no_schedule_uses_a_delay(
    delays: list[float], ranks: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, ranks - 1))
    late = make([[seconds * (r == rank) for r in range(ranks)] for seconds in delays], ranks)
    if ranks > 2:
        assert kinds(late) & USES_A_DELAY
    assert not kinds(profile.without_straggler(late)) & USES_A_DELAY


@settings(max_examples=100, deadline=None)
@given(
    st.integers(2, 6).flatmap(lambda n: st.lists(st.lists(st.floats(0, 1), min_size=n, max_size=n), min_size=1)),
)
def test_the_straggler_left_out_is_never_last_and_the_others_stay(arrivals: list[list[float]]) -> None:
    before = profile.with_late_rank(make(arrivals, len(arrivals[0])), 1, 5.0)
    late = profile.find_straggler(before)
    assert (late.rank, late.is_late) == (1, True)
    after = np.array(profile.without_straggler(before).arrivals)
    others = np.delete(after, late.rank, axis=1)
    assert (after[:, late.rank] <= others.max(axis=1)).all()
    assert (after[:, late.rank] <= np.array(before.arrivals)[:, late.rank]).all()
    np.testing.assert_array_equal(others, np.delete(np.array(before.arrivals), late.rank, axis=1))


def test_the_straggler_left_out_comes_with_the_median_of_the_others_and_never_later_than_it_did() -> None:
    before = make([[0.0, 1.0, 9.0, 20.0]] * 8 + [[0.0, 1.0, 3.0, 0.5]], 4)
    assert profile.without_straggler(before).arrivals == [[0.0, 1.0, 9.0, 1.0]] * 8 + [[0.0, 1.0, 3.0, 0.5]]


def test_where_nobody_is_late_there_is_no_straggler_to_leave_out(capsys: Capture, tmp_path: Path) -> None:
    alike = make([[1.0 * (rank == last) for rank in range(4)] for last in (2, 0, 2, 1, 3, 2)], 4)
    with pytest.raises(ProfileError, match="nobody is late in it; there is no straggler to leave out"):
        profile.without_straggler(alike)
    profile.save(alike, tmp_path / "profile.json")
    assert main(["what-if", str(tmp_path / "profile.json")]) == 0
    message = "no rank is late: rank 2 was last in 3 of 6 steps, which chance explains (p = 0.68)"
    assert message in capsys.readouterr().out


def test_changes_leave_the_profile_as_it_was_and_say_what_they_did() -> None:
    before = one_late(0.02)
    text = before.canonical_bytes()
    after = profile.with_late_rank(profile.at_rate(profile.without_straggler(before), 0.25), 5, 0.001)
    assert before.canonical_bytes() == text and after.hash != before.hash
    assert after.provenance.source == (
        "a test, without its straggler, rank 3, links at 0.25 times their rate, rank 5 later by 0.001 s"
    )
    assert after.link.source == "a link; then 0.25 times the rate"


def test_at_a_rate_only_the_bytes_take_another_time() -> None:
    link = Link(
        alpha_s=ALPHA, beta_s_per_byte=BETA, samples=[Sample(bytes=8, seconds=1.0)], residual=0.1, source="a link"
    )
    before = one_late(0.02).model_copy(update={"link": link, "collective": Collective(bytes=8, seconds=1.0)})
    after = profile.at_rate(before, 0.25)
    assert (after.link.alpha_s, after.link.beta_s_per_byte) == (ALPHA, 4 * BETA)
    assert (after.link.samples, after.link.residual, after.collective) == ([], 0.0, None)
    assert after.arrivals == before.arrivals


def test_a_rank_is_later_than_it_was() -> None:
    assert profile.with_late_rank(one_late(0.02), 3, 0.01).arrivals[0][3] == pytest.approx(0.03)
    assert profile.with_late_rank(make([], 4), 2, 0.01).arrivals == [[0.0, 0.0, 0.01, 0.0]]


@pytest.mark.parametrize("rank", [-1, 8])
def test_only_a_rank_of_the_profile_can_be_late(rank: int) -> None:
    with pytest.raises(ProfileError, match=f"rank {rank} cannot be late: the ranks are 0 to 7"):
        profile.with_late_rank(one_late(0.02), rank, 0.01)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e10])
def test_a_time_that_cannot_be_is_an_error(seconds: float) -> None:
    with pytest.raises(ProfileError, match=r"rank 5 cannot be late by (-1|nan|inf) s|arrivals\[0\]\[5\] is "):
        profile.with_late_rank(one_late(0.02), 5, seconds)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_is_above_zero(rate: float) -> None:
    with pytest.raises(ProfileError, match="the rate is "):
        profile.at_rate(one_late(0.02), rate)


# A delay that hides all early work at both rates, or no delay. In these cases all times scale with the link's rate.
@pytest.mark.parametrize("given", [one_late(1e4), make([])], ids=["late", "together"])
def test_a_quarter_rate_takes_four_times_as_long_for_large_buffers(
    given: Profile, capsys: Capture, tmp_path: Path
) -> None:
    small, large = rows(capsys, tmp_path, given, "--rate", "1/4", "--sizes", "32,16GiB")
    assert large["changed"]["seconds"] == pytest.approx(4 * large["today"]["seconds"], rel=0.02)
    assert large["changed"]["lower_bound"] == pytest.approx(4 * large["today"]["lower_bound"], rel=0.02)
    assert small["changed"]["seconds"] < 1.1 * small["today"]["seconds"]


@pytest.mark.slow
def test_every_prediction_is_that_of_the_plan_and_above_the_bound(capsys: Capture, tmp_path: Path) -> None:
    given = make([[0.02 * (r == 3) + 1e-4 * ((7 * r + step) % 5) for r in range(8)] for step in range(20)])
    found = rows(capsys, tmp_path, given, "--sizes", "1KiB,64MiB")
    plan, late = planner.plan(given), simulate.Delays(profile.find_straggler(given).delays)
    for row in found:
        expected = simulate.seconds(plan.schedule_for(row["bytes"]), row["bytes"], late, ALPHA, BETA)
        assert row["today"]["seconds"] == pytest.approx(expected)
        assert row["today"]["wait_s"] == pytest.approx(np.max(given.arrivals, axis=1).mean())
        for side in (row["today"], row["changed"]):
            assert side["seconds"] >= side["lower_bound"] * (1 - 1e-9)
        alone = row["changed"]["seconds"] - row["today"]["seconds"]
        wait = row["changed"]["wait_s"] - row["today"]["wait_s"]
        assert row["difference_s"] == pytest.approx(alone)
        assert row["difference_with_wait_s"] == pytest.approx(alone + wait)


@pytest.mark.slow
def test_by_default_the_standard_changes_are_rows(capsys: Capture, tmp_path: Path) -> None:
    found = [row["change"] for row in rows(capsys, tmp_path, one_late(0.02), "--sizes", "1MiB")]
    other = [{"rank": 4, "seconds": 0.02}]
    rails = {"without_rails": [], "rail_rates": {}, "uplink_rates": {}, "nic_rates": {}}
    assert found == [
        {"no_straggler": True, "rate": 1.0, "late": [], **rails},
        {"no_straggler": False, "rate": 0.25, "late": [], **rails},
        {"no_straggler": False, "rate": 1.0, "late": other, **rails},
        {"no_straggler": True, "rate": 1.0, "late": other, **rails},
    ]


@pytest.mark.parametrize("arrivals", [[], [[0.0] * 8] * 3], ids=["unknown", "together"])
def test_where_nobody_is_late_nobody_can_be_left_out(
    arrivals: list[list[float]], capsys: Capture, tmp_path: Path
) -> None:
    found = rows(capsys, tmp_path, make(arrivals), "--sizes", "64MiB")
    assert [(row["change"]["no_straggler"], row["change"]["rate"]) for row in found] == [(False, 0.25), (False, 1.0)]
    assert (found[0]["today"]["schedule"], found[0]["today"]["wait_s"]) == ("direct", 0.0)
    assert found[1]["changed"]["schedule"].startswith("straggler, ")
    assert main(["what-if", str(tmp_path / "profile.json"), "--no-straggler"]) == 1
    assert capsys.readouterr().err.startswith("error: a test: ")


@pytest.mark.slow
def test_another_straggler_changes_nothing_and_a_second_one_takes_some_of_the_gain_away(
    capsys: Capture, tmp_path: Path
) -> None:
    late = ("--late", "rank=5,ms=20", "--sizes", "64MiB")
    [other] = rows(capsys, tmp_path, one_late(0.02), "--no-straggler", *late)
    assert other["changed"] == {**other["today"], "straggler": 5}
    assert other["today"]["straggler"] == 3
    assert other["today"]["schedule"].startswith("straggler, ")
    assert other["difference_s"] == other["difference_with_wait_s"] == 0
    [second] = rows(capsys, tmp_path, one_late(0.02), *late)
    assert second["changed"]["schedule"].startswith("2 stragglers, ")
    assert second["difference_s"] > 0


def test_without_the_straggler_the_collective_takes_longer_and_the_wait_ends(capsys: Capture, tmp_path: Path) -> None:
    [row] = rows(capsys, tmp_path, one_late(0.02), "--no-straggler", "--sizes", "64MiB")
    assert (row["changed"]["schedule"], row["changed"]["straggler"]) == ("direct", None)
    assert row["difference_s"] > 0 > row["difference_with_wait_s"]
    assert (row["today"]["wait_s"], row["changed"]["wait_s"]) == (pytest.approx(0.02), 0.0)


def test_changes_are_combined_in_one_row_of_the_table(capsys: Capture, tmp_path: Path) -> None:
    profile.save(one_late(0.02), tmp_path / "profile.json")
    words = ["--no-straggler", "--rate", "0.25", "--late", "rank=0,ms=3", "--late", "rank=1,ms=7", "--sizes", "1GiB"]
    assert main(["what-if", str(tmp_path / "profile.json"), *words]) == 0
    text = capsys.readouterr().out
    assert text.startswith("8 ranks, rank 3 last in 4 of 4 steps, by 20 ms (median)")
    [line] = [line for line in text.splitlines() if "1 GiB" in line]
    assert text.splitlines()[-1].endswith("rank 1 last in 4 of 4 steps, by 4 ms (median)")
    assert line.startswith("no straggler, links at 1/4 times their rate, rank 0 later by 3 ms, rank 1 later by 7 ms  ")


def test_a_rail_that_is_gone_leaves_its_share_to_the_others(capsys: Capture, tmp_path: Path) -> None:
    [row] = rows(capsys, tmp_path, on_rails("eth0", "eth1"), "--without-rail", "eth1", "--sizes", "100MB")
    assert row["change"]["without_rails"] == ["eth1"]
    assert row["today"]["rails_seconds"] == pytest.approx(0.051, rel=0.005)
    assert (row["changed"]["rails"], row["changed"]["rails_seconds"]) == ("eth0 100%", pytest.approx(0.101))


def test_a_rail_at_a_rate_gets_another_share(capsys: Capture, tmp_path: Path) -> None:
    [row] = rows(capsys, tmp_path, on_rails("eth0", "eth1"), "--rail-rate", "eth1=1/3", "--sizes", "100MB")
    assert row["change"]["rail_rates"] == {"eth1": pytest.approx(1 / 3)}
    assert row["changed"]["rails"].startswith("eth0 75")
    assert row["changed"]["rails_seconds"] == pytest.approx(0.076, rel=0.005)


def test_links_at_a_rate_are_rails_at_that_rate_and_latencies_stay() -> None:
    changed = profile.at_rate(on_rails("eth0"), 0.5).rails[0]
    assert [sample.seconds for sample in changed.latency] == pytest.approx([1e-3, 3e-3, 2.001], rel=1e-5)
    assert changed.bytes_per_s == 5e8


def test_each_of_several_rails_is_a_standard_change_and_its_table_is_printed(capsys: Capture, tmp_path: Path) -> None:
    profile.save(on_rails("eth0", "eth1"), tmp_path / "profile.json")
    assert main(["what-if", str(tmp_path / "profile.json"), "--sizes", "100MB"]) == 0
    text = capsys.readouterr().out
    table = text[text.index("On the rails alone") :]
    assert [line.split("  ")[0] for line in table.splitlines() if line.startswith("no rail")] == [
        "no rail eth0",
        "no rail eth1",
    ]
    assert "+50 ms" in table


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--without-rail", "eth0"], 1, "error: a test: has no rail 'eth0'; its rails are: none"),
        (["--rail-rate", "eth0"], 2, "'eth0' is not a rail and its rate; write for example eth1=1/4"),
        (["--rail-rate", "eth0=0"], 2, "'0' is not a rate"),
        (["--late", "rank=8,ms=1"], 1, "error: a test: rank 8 cannot be late: the ranks are 0 to 7"),
        (["--ports", "0"], 2, "'0' is not a whole number from 1 to 4096"),
        (["--late", "rank=1"], 2, "write for example rank=3,ms=20"),
        (["--rate", "a quarter"], 2, "'a quarter' is not a rate; write for example 1/4"),
        (["--rate", "1/0"], 2, "'1/0' is not a rate"),
        (["--rate", "0"], 2, "'0' is not a rate"),
        (["--rate", "inf"], 2, "'inf' is not a rate"),
        (["--sizes", "much"], 2, "'much' is not a size"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes(words: list[str], code: int, message: str, capsys: Capture, tmp_path: Path) -> None:
    profile.save(one_late(0.02), tmp_path / "profile.json")
    assert main(["what-if", str(tmp_path / "profile.json"), *words]) == code
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""


@pytest.mark.slow
def test_it_needs_no_jax(tmp_path: Path) -> None:
    profile.save(one_late(0.02), tmp_path / "profile.json")
    words = ["what-if", str(tmp_path / "profile.json"), "--sizes", "1MiB"]
    code = f"import sys; from jaxcomm.cli import main; sys.exit(main({words}) or 'jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_rails_are_imported_from_the_output_of_nccl_tests(tmp_path: Path, capsys: Capture) -> None:
    table = Path(__file__).parents[1] / "fixtures" / "nccl_tests.txt"
    file = tmp_path / "profile.json"
    assert main(["profile", "import", str(table), "--out", str(file)]) == 0
    for rail in ("eth0=tcp", "eth1=tcp", "eth1=rdma"):  # the last rail replaces the rail of the same name
        assert main(["profile", "import", str(table), "--rail", rail, "--into", str(file)]) == 0
    found = profile.load(file)
    assert [(rail.name, rail.transport) for rail in found.rails] == [("eth0", "tcp"), ("eth1", "rdma")]
    assert found.rails[0].latency == profile.read_any(table).link.samples
    assert main(["what-if", str(file), "--without-rail", "eth1"]) == 0
    assert "would be carried by" in capsys.readouterr().out


def test_a_rail_of_other_ranks_or_of_another_collective_is_refused() -> None:
    timed = profile.read_any(Path(__file__).parents[1] / "fixtures" / "nccl_tests.txt")
    with pytest.raises(ProfileError, match=r"has 4 ranks; eth1 was timed on 8.\n  Cure: time it on 4 ranks"):
        profile.with_rail(make([], 4), "eth1", "tcp", timed)
    gathers = timed.model_copy(update={"link": timed.link.model_copy(update={"op": "all_gather"})})
    with pytest.raises(
        ProfileError,
        match=r"holds no allreduces, from which a rail's table is made.\n  Cure: `JAXCOMM_RAILS=eth1 jaxcomm profile`",
    ):
        profile.with_rail(make([], 8), "eth1", "tcp", gathers)


def test_a_jobs_own_profile_gives_a_rails_table() -> None:
    def sample(nbytes: int, *seconds: float) -> ScheduleSample:
        return ScheduleSample(bytes=nbytes, together=[*seconds], late=[*seconds], late_by_s=0.01)

    samples = [sample(4096, 1e-6, 2e-6, 3e-6), sample(1 << 16, 2e-3, 1e-3, 9e-3), sample(1 << 20, 0.02, 0.01, 0.03)]
    schedules = [TimedSchedule(kind=kind, samples=samples) for kind in ("direct", "ring")]
    link = Link(alpha_s=1e-5, beta_s_per_byte=1e-9, op="send_recv", source="a job")
    timed_schedules = TimedSchedules(executor="messages", late=0, schedules=schedules)
    timed = make([], 4).model_copy(update={"link": link, "timed_schedules": timed_schedules})
    found = profile.with_rail(make([], 4), "eth1", "tcp", timed)
    assert [(each.bytes, each.seconds) for each in found.rails[0].latency] == [(1 << 16, 2e-3), (1 << 20, 0.02)]
    several = timed.model_copy(update={"rails": on_rails("eth0", "eth1").rails})
    assert profile.with_rail(make([], 4), "eth1", "tcp", several).rails == several.rails[1:]


def test_racks_may_be_named_on_the_command_line(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    profile.save(make([]), file)
    words = ["--racks", "5+3", "--uplink-rate", "0=1/4", "--sizes", "64MiB", "--json"]
    assert main(["what-if", str(file), *words]) == 0
    [row] = documents.document(capsys.readouterr().out)["rows"]
    assert row["today"]["groups_s"] < row["changed"]["groups_s"]
