"""Splits over rails: compared with brute force, checked for any tables, and validated in plan files."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.linear_solver import pywraplp

from jaxcomm import plan, planner, profile
from jaxcomm.errors import PlanError, ProfileError
from jaxcomm.ffi.shares import UNITS
from jaxcomm.plan.rails import Rails
from jaxcomm.planner import rails
from jaxcomm.planner.rails import search
from jaxcomm.planner.rails.split import TIE, Load, best_split, fastest_rail, lower_bound, split_seconds
from jaxcomm.planner.rails.times import RailOption, options
from jaxcomm.profile import Channels, CoreRate, Link, Profile, Provenance, Rail, Sample
from jaxcomm.report.plan.explanation import explanation
from jaxcomm.report.plan.rails import rail_table, rail_times_table
from tests.plan.documents import PLAN, load, replaced, sealed

KB, MB = 2**10, 2**20
Capture = pytest.CaptureFixture[str]


def table(alpha: float, rate: float, *sizes: int) -> list[Sample]:
    return [Sample(bytes=size, seconds=alpha + size / rate) for size in sizes or (KB, 64 * KB, MB, 64 * MB)]


def rail(name: str, alpha: float = 1e-5, rate: float = 1e9, **fields: Any) -> Rail:
    return Rail(**{"name": name, "transport": "tcp", "latency": table(alpha, rate), **fields})


def cluster(*members: Rail, **fields: Any) -> Profile:
    return Profile(
        ranks=4,
        link=Link(alpha_s=1e-6, beta_s_per_byte=1e-10, source="a link"),
        rails=list(members),
        provenance=Provenance(source="a test", tool="pytest"),
        **fields,
    )


def decide(*members: Rail, min_gain: float = 0.02, **fields: Any) -> Rails:
    found = rails.decide(cluster(*members, **fields), min_gain)
    assert found is not None
    return found


samples = st.lists(
    st.tuples(st.integers(1, 2**30), st.floats(1e-7, 10)), min_size=1, max_size=5, unique_by=lambda pair: pair[0]
).map(lambda pairs: [Sample(bytes=size, seconds=time) for size, time in sorted(pairs)])
slowdowns = st.floats(1, 2)


@st.composite
def clusters(draw: st.DrawFn) -> Profile:
    """Rails with any tables, also noisy or falling ones, or of one sample; some have channels, some have cores."""
    members = []
    for number in range(draw(st.integers(1, 3))):
        fields: dict[str, Any] = {"latency": draw(samples), "slowdown": draw(slowdowns)}
        if draw(st.booleans()):
            fields["virtual"] = [Channels(channels=2, latency=draw(samples))]
        if draw(st.booleans()):
            rates = draw(st.lists(st.floats(1e6, 1e10), min_size=1, max_size=3))
            fields["cores"] = [CoreRate(cores=4 * (i + 1), bytes_per_s=rate) for i, rate in enumerate(rates)]
        members.append(rail(f"eth{number}", **fields))
    return cluster(*members, cpu_cores=draw(st.sampled_from([None, 8, 16])))


def by_mip(ways: list[list[RailOption]], nbytes: int, cores: int | None) -> tuple[float, float]:
    """Seconds of the best split in units of 1/1024, and a lower bound, by a piecewise-linear integer program.

    Binary variables select at most one linear piece of one option for a rail, and integer variables are the rail's
    units there (the multiple choice model of Croxton, Gendron and Magnanti, Management Science 49(9), 2003).
    """
    whole = UNITS
    scale = min(option.seconds(nbytes) for each in ways for option in each)
    solver = pywraplp.Solver.CreateSolver("SCIP")
    end, placed = solver.NumVar(0, 1e6, ""), []
    for rail_ways in ways:
        spent, chosen = [], []
        for option in rail_ways:
            edges = sorted({0, whole, *(min(whole, size * whole // nbytes) for size in option.curve.sizes)})
            for low, high in itertools.pairwise(edges):
                first, last = (option.together(nbytes * units / whole) / scale for units in (low + 1, high))
                slope = (last - first) / (high - low - 1) if high > low + 1 else 0.0
                if first > 1:  # one rail alone is faster
                    continue
                here, units = solver.BoolVar(""), solver.IntVar(0, high, "")
                solver.Add(units >= (low + 1) * here)
                solver.Add(units <= high * here)
                spent.append((first - slope * (low + 1)) * here + slope * units)
                chosen.append(here)
                placed.append((option, here, units))
        solver.Add(sum(chosen) <= 1)
        solver.Add(end >= sum(spent))
    solver.Add(sum(units for _, _, units in placed) == whole)
    if cores is not None:
        solver.Add(sum((option.cores or 0) * here for option, here, _ in placed) <= cores)
    solver.Minimize(end)
    if not placed or solver.Solve() != pywraplp.Solver.OPTIMAL:
        return math.inf, math.inf
    taken = [(option, round(units.solution_value())) for option, _, units in placed]
    split = tuple(Load(option, count / whole) for option, count in taken if count)
    return split_seconds(split, nbytes), solver.Objective().BestBound() * scale


@settings(max_examples=60, deadline=None)
@given(clusters(), st.integers(1, 2**32))
def test_the_split_is_as_good_as_a_mixed_integer_programs(given: Profile, nbytes: int) -> None:
    ways = [options(given, each) for each in given.rails]
    alone = fastest_rail(ways, nbytes).seconds(nbytes)
    best, bound = by_mip(ways, nbytes, given.cpu_cores)
    split = best_split(ways, nbytes, given.cpu_cores)
    found = split_seconds(split, nbytes) if split else alone
    assert min(alone, bound) - 1e-5 * alone <= found <= min(alone, best) + 1e-5 * alone


@settings(max_examples=60, deadline=None)
@given(clusters(), st.integers(1, 2**32))
def test_the_split_is_as_good_as_trying_all_shares_of_two_rails(given: Profile, nbytes: int) -> None:
    ways = [options(given, each) for each in given.rails][:2]
    units = np.arange(1, UNITS)
    alone = best = fastest_rail(ways, nbytes).seconds(nbytes)
    for first, second in itertools.product(*ways) if len(ways) == 2 else ():
        if given.cpu_cores is None or (first.cores or 0) + (second.cores or 0) <= given.cpu_cores:
            pair = [
                each.rail.slowdown * each.curve(nbytes * part / UNITS)
                for each, part in ((first, units), (second, UNITS - units))
            ]
            best = min(best, float(np.maximum(*pair).min()))
    split = best_split(ways, nbytes, given.cpu_cores)
    assert (split_seconds(split, nbytes) if split else alone) <= best * (1 + 2 * TIE)
    assert split is None or split_seconds(split, nbytes) >= best * (1 - 1e-12)


def test_of_splits_that_end_as_soon_the_one_that_asks_least_is_taken() -> None:
    # On every rail, with any number of cores, half of 1.5 KiB takes as long as 1 KiB, the first size in the table.
    alike = [CoreRate(cores=cores, bytes_per_s=1e9) for cores in (2, 4)]
    ways = [options(cluster(each), each) for each in (rail(name, cores=alike) for name in "abc")]
    split = best_split(ways, 3 * KB // 2, None)
    assert [(load.option.rail.name, load.option.cores, load.share) for load in split] == [("a", 2, 0.5), ("b", 2, 0.5)]


def by_time(given: Profile, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least times for these sizes with arbitrarily fine shares, and the times of the best rail alone."""
    ways = [options(given, each) for each in given.rails]
    alone = np.min([option.curve(sizes) for each in ways for option in each], axis=0)
    low, high = np.zeros(len(sizes)), alone
    for _ in range(40):
        middle = (low + high) / 2
        carried = sum(np.max([option.together_bytes(middle) for option in each], axis=0) for each in ways)
        low, high = np.where(carried >= sizes, low, middle), np.where(carried >= sizes, middle, high)
    return high, alone


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_at_every_size_a_range_is_within_2_percent_of_the_best_split_and_never_behind_one_rail(
    count: int, noise: float
) -> None:
    kinds = [(5e-6, 1e9), (1e-3, 1e10), (1e-4, 4e9), (3e-5, 1.5e9)][:count]
    rng = np.random.default_rng(count)

    def measured(start: float, rate: float) -> list[Sample]:
        exact = table(start, rate, *(4**power for power in range(17)))
        return [Sample(bytes=e.bytes, seconds=e.seconds * math.exp(noise * rng.standard_normal())) for e in exact]

    given = cluster(*(rail(f"eth{i}", latency=measured(*kind)) for i, kind in enumerate(kinds)))
    found = rails.decide(given)
    assert found is not None
    sizes = np.array([1482909, *np.geomspace(1, 2**33, 300).astype(np.int64)])
    taken = [rails.seconds(given, found.split_for(size), size) for size in sizes.tolist()]
    best, alone = by_time(given, sizes)
    assert (taken / best).max() <= 1.02
    assert (taken / alone).max() <= 1 + 1e-9


def test_rails_that_ask_for_more_ranges_than_a_plan_holds_get_more_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    members = rail("a", 5e-6), rail("b", 1e-4, 4e9)
    many = len(decide(*members).ranges)
    for most in (many // 2, 3):
        monkeypatch.setattr("jaxcomm.planner.rails.search.MAX_RANGES", most)
        assert len(decide(*members).ranges) < many


@settings(max_examples=8, deadline=None)
@given(clusters(), st.sampled_from([0.0, 0.02, 0.3]), st.lists(st.integers(1, 2**34), min_size=5, max_size=5))
def test_every_split_keeps_its_promises(given: Profile, min_gain: float, sizes: list[int]) -> None:
    found = rails.decide(given, min_gain)
    assert found == rails.decide(given, min_gain)
    assert [each.name for each in found.members] == [each.name for each in given.rails]
    for each in found.ranges:
        times = each.predicted
        assert sum(share.share for share in each.shares) == 1
        assert times.seconds <= times.single * (1 + 1e-8)
        assert times.lower_bound <= min(times.seconds, times.fixed_ratio, times.slicing) * (1 + 1e-8)
        if each.reason == "split":
            assert times.seconds <= (1 - min_gain) * times.single * 1.02 * (1 + 1e-8)
            assert each.ratio <= found.divergence or not each.extrapolated
        else:
            assert times.seconds == pytest.approx(times.single)
    for nbytes in sizes:
        seconds = rails.seconds(given, found.split_for(nbytes), nbytes)
        assert seconds > 0
    for each, (low, units) in zip(found.ranges, found.planned().shares, strict=True):
        assert each.min_bytes == low
        assert units == {share.rail: UNITS * share.share for share in each.shares}


def saved_within_reach(given: Profile, nbytes: int) -> float:
    """The greatest share of the best rail's time that a split over two rails saves without extrapolating a table."""
    ways, units = [options(given, each) for each in given.rails], np.arange(1, UNITS)
    best = alone = fastest_rail(ways, nbytes).seconds(nbytes)
    for pair in itertools.product(*ways):
        sizes = nbytes * units / UNITS, nbytes * (UNITS - units) / UNITS
        times = [each.rail.slowdown * each.curve(size) for each, size in zip(pair, sizes, strict=True)]
        known = (sizes[0] <= pair[0].reach) & (sizes[1] <= pair[1].reach)
        best = min(best, float(np.where(known, np.maximum(*times), math.inf).min()))
    return 1 - best / alone


two_rails = st.tuples(samples, samples, slowdowns).map(
    lambda drawn: cluster(*(rail(f"eth{i}", latency=drawn[i], slowdown=drawn[2]) for i in range(2)))
)


@settings(max_examples=100, deadline=None)
@given(two_rails, st.sampled_from([0.0, 0.016, 0.3]), st.integers(1, 2**32))
def test_one_rail_stays_only_where_nothing_gains_enough(given: Profile, min_gain: float, nbytes: int) -> None:
    choice = search.RailSearch([options(given, each) for each in given.rails], None, min_gain).choose(nbytes)
    if len(choice.split) == 1:
        assert saved_within_reach(given, nbytes) <= min_gain + 1e-5
    else:
        assert 1 - choice.seconds / choice.alone >= min_gain - 1e-12


def test_a_split_that_diverges_only_below_a_table_is_taken() -> None:
    # In the best split b carries 12 % of the buffer, 842 bytes, at an eighth of a's rate. The table of b starts at 827.
    tables = (
        [(2334, 0.0001111), (6883294, 0.2609945), (57658290, 1.3367586)],
        [(827, 0.0002696), (2452, 0.0003514), (15444, 0.0003965), (361830, 0.0045273), (25988908, 0.2794368)],
    )
    members = [
        rail(name, latency=[Sample(bytes=size, seconds=seconds) for size, seconds in each])
        for name, each in zip("ab", tables, strict=True)
    ]
    given = cluster(*members)
    assert saved_within_reach(given, 7020) > 0.06
    assert decide(*members).range_for(7020).reason == "split"


@settings(max_examples=8, deadline=None)
@given(clusters())
def test_with_a_rail_gone_the_others_carry_all_and_nothing_is_faster(given: Profile) -> None:
    if len(given.rails) == 1:
        with pytest.raises(ProfileError, match="'eth0' is the only rail; without it the ranks are not connected"):
            profile.without_rail(given, "eth0")
        return
    left = profile.without_rail(given, "eth0")
    assert [each.name for each in left.rails] == [each.name for each in given.rails[1:]]
    ways = [options(given, each) for each in given.rails]
    for nbytes in (KB, MB, 2**30):
        before, after = (lower_bound(some, nbytes) for some in (ways, ways[1:]))
        assert before <= after
        assert fastest_rail(ways, nbytes).seconds(nbytes) <= fastest_rail(ways[1:], nbytes).seconds(nbytes)
    gone = rails.decide(left)
    assert "eth0" not in {share.rail for each in gone.ranges for share in each.shares}


def test_equal_rails_split_in_halves_from_the_threshold_on() -> None:
    found = decide(rail("a"), rail("b"))
    # Half of a buffer of 1 to 2 KiB takes as long as 1 KiB, the first size in the table. A split saves 2 % from the
    # size s on at which α + 1 KiB / r is 98 % of α + s / r.
    assert found.threshold_bytes == pytest.approx((1e-5 * 1e9 + KB) / 0.98 - 1e-5 * 1e9, rel=0.01)
    assert [each.reason for each in found.ranges][:2] == ["cold", "split"]
    assert [share.share for share in found.split_for(64 * MB)] == pytest.approx([0.5, 0.5], abs=2 / 1024)
    assert found.range_for(64 * MB).predicted.seconds == pytest.approx(
        found.range_for(64 * MB).predicted.single / 2, rel=0.1
    )


def test_a_rail_that_slows_its_neighbour_too_much_stays_idle() -> None:
    assert decide(rail("a", slowdown=2.1), rail("b", slowdown=2.1)).threshold_bytes is None
    assert {each.reason for each in decide(rail("a", slowdown=2.1), rail("b", slowdown=2.1)).ranges} == {"cold"}


def test_rails_that_differ_by_more_than_five_split_only_where_their_tables_have_measured_it() -> None:
    fast, sizes = rail("fast", 1e-6, 6e9), (MB, 64 * MB)
    found = decide(fast, rail("slow", 1e-6, 1e9, latency=table(1e-6, 1e9, *sizes)))
    # On the slow rail 2/7 MiB take as long as 1 MiB, the first size in its table; 8/7 GiB are far beyond the last size.
    assert found.range_for(2 * MB).reason == "cold"
    assert found.range_for(16 * MB).reason == "split" and found.range_for(16 * MB).ratio > 5
    assert [share.rail for share in found.split_for(2**33)] == ["fast"]
    assert found.range_for(2**33).reason == "diverges"
    assert found.range_for(2**33).ratio == pytest.approx(6, rel=0.01)
    near = decide(fast, rail("slow", 1e-6, 1.3e9, latency=table(1e-6, 1.3e9, *sizes)))
    assert near.range_for(2**33).reason == "split" and near.range_for(2**33).extrapolated


def test_of_three_rails_the_one_that_diverges_is_left_out() -> None:
    found = decide(rail("a", 1e-6), rail("b", 1e-6), rail("c", 1e-6, 1e8))
    assert [share.rail for share in found.split_for(2**33)] == ["a", "b"]
    assert [share.rail for share in found.split_for(32 * MB)] == ["a", "b", "c"]


def test_virtual_rails_are_used_where_they_are_faster() -> None:
    wide = Channels(channels=4, latency=table(1e-4, 2e9))
    found = decide(rail("a", virtual=[wide]))
    assert {each.reason for each in found.ranges} == {"only_rail"}
    assert [found.split_for(nbytes)[0].channels for nbytes in (KB, 64 * MB)] == [1, 4]


def test_cores_go_where_they_pay() -> None:
    hungry = [CoreRate(cores=count, bytes_per_s=count * 1e8) for count in (2, 4, 6, 8)]
    modest = [CoreRate(cores=2, bytes_per_s=1e9), CoreRate(cores=8, bytes_per_s=1.001e9)]
    found = decide(rail("a", cores=hungry), rail("b", cores=modest), cpu_cores=8)
    assert [(share.rail, share.cores) for share in found.split_for(64 * MB)] == [("a", 6), ("b", 2)]
    with pytest.raises(ProfileError, match="rail 'a': was measured with 2 cores or more; cpu_cores is 1"):
        decide(rail("a", cores=hungry), cpu_cores=1)


def test_tables_are_read_between_and_beyond_their_samples() -> None:
    bumpy = [Sample(bytes=size, seconds=time) for size, time in ((KB, 9.0), (2 * KB, 2.0), (4 * KB, 4.0))]
    [option] = options(cluster(rail("a", latency=bumpy)), rail("a", latency=bumpy))
    assert [option.seconds(size) for size in (1, KB, 2 * KB, 3 * KB, 4 * KB, 8 * KB)] == [2, 2, 2, 3, 4, 8]
    assert option.reach == 8 * KB
    flat = [Sample(bytes=KB, seconds=2.0)]
    [option] = options(cluster(rail("a", latency=flat)), rail("a", latency=flat))
    assert option.seconds(3 * KB) == 6


def test_a_table_with_a_time_of_nothing_is_an_error() -> None:
    with pytest.raises(ProfileError, match="a test: rail 'a': a timed call took 0 s"):
        decide(rail("a", latency=[Sample(bytes=KB, seconds=0.0)]))


def test_a_profile_without_rails_has_no_split() -> None:
    assert rails.decide(cluster()) is None
    assert planner.plan(cluster()).rails is None


def split(*shares: tuple[str, float]) -> list[dict[str, Any]]:
    return [{"rail": name, "share": share, "channels": 1, "cores": None} for name, share in shares]


TIMES = dict.fromkeys(("single", "fixed_ratio", "slicing"), 1e-3) | {"lower_bound": 5e-4}
RANGE = {"ratio": None, "extrapolated": False}
RAILS: dict[str, Any] = {
    "members": [{"name": f"eth{i}", "transport": "tcp", "bytes_per_s": 1e9} for i in range(2)],
    "threshold_bytes": 1024,
    "divergence": 5.0,
    "min_gain": 0.02,
    "cpu_cores": None,
    "ranges": [
        {
            "min_bytes": 0,
            "max_bytes": 1023,
            "shares": split(("eth0", 1.0)),
            "reason": "cold",
            "predicted": {"reference_bytes": 512, "seconds": 1e-3, **TIMES},
            **RANGE,
        },
        {
            "min_bytes": 1024,
            "max_bytes": None,
            "shares": split(("eth0", 0.5), ("eth1", 0.5)),
            "reason": "split",
            "predicted": {"reference_bytes": 4096, "seconds": 9e-4, **TIMES},
            **RANGE,
        },
    ],
}
BROKEN = {
    "sum": (
        ("ranges", 1, "shares", 1, "share", 1.3),
        "rails.ranges[1].shares[1].share is 1.3; shares of one byte range must sum to 1 (they sum to 1.8)",
    ),
    "rail": (
        ("ranges", 1, "shares", 1, "rail", "eth7"),
        'rails.ranges[1].shares[1].rail is "eth7", which is not a rail of this plan; its rails are: eth0, eth1',
    ),
    "twice": (("ranges", 1, "shares", 1, "rail", "eth0"), 'shares[1].rail is "eth0", which has a share already'),
    "names": (("members", 1, "name", "eth0"), 'rails.members has two of the name "eth0"; names must differ'),
    "threshold": (("threshold_bytes", 7), "rails.threshold_bytes is 7; the ranges split from 1024 on"),
    "gap": (("ranges", 1, "min_bytes", 1025), "rails.ranges[1].min_bytes is 1025; it must be 1024, with no gap"),
    "end": (("ranges", 1, "max_bytes", 4096), "rails.ranges[1].max_bytes is 4096; the last, and only it, has no limit"),
    "open": (("ranges", 0, "max_bytes", None), "rails.ranges[0].max_bytes is None; the last, and only it"),
    "reason": (("ranges", 0, "reason", "split"), 'rails.ranges[0].reason is "split" for 1 shares'),
    "negative": (("ranges", 1, "shares", 1, "share", -0.5), "rails.ranges[1].shares[1].share is -0.5; it must be"),
    "reference": (
        ("ranges", 0, "predicted", "reference_bytes", 1024),
        "rails.ranges[0].predicted.reference_bytes is 1024, outside of its range",
    ),
    "bound": (
        ("ranges", 1, "predicted", "seconds", 4e-4),
        "rails.ranges[1].predicted.seconds is 0.0004, below its lower_bound, 0.0005",
    ),
    "gain": (
        ("ranges", 1, "predicted", "seconds", 9.9e-4),
        'predicted.seconds is 0.00099; with the reason "split" and a min_gain of 0.02 it is at most 0.00098',
    ),
    "cores": (("ranges", 1, "shares", 0, "cores", 0), "rails.ranges[1].shares[0].cores is 0; it must be"),
}


def test_a_plan_with_whole_rails_is_read(tmp_path: Path) -> None:
    assert load(tmp_path / "plan.json", sealed({**PLAN, "rails": RAILS})).rails == Rails.model_validate(RAILS)


@pytest.mark.parametrize("case", BROKEN)
def test_a_plan_with_broken_rails_is_refused(case: str, tmp_path: Path) -> None:
    (*path, value), message = BROKEN[case]
    with pytest.raises(PlanError) as caught:
        load(tmp_path / "plan.json", sealed({**PLAN, "rails": replaced(RAILS, *path, to=value)}))
    assert message in str(caught.value) and "Cure: " in str(caught.value)


def test_too_many_cores_in_a_range_are_refused(tmp_path: Path) -> None:
    document = replaced({**RAILS, "cpu_cores": 4}, "ranges", 1, "shares", 0, "cores", to=8)
    with pytest.raises(PlanError, match=r"rails.ranges\[1\].shares take 8 cores; rails.cpu_cores is 4"):
        load(tmp_path / "plan.json", sealed({**PLAN, "rails": document}))


def test_a_plan_with_rails_is_read_as_it_was_written_and_explained(tmp_path: Path) -> None:
    made = planner.plan(cluster(rail("eth0"), rail("eth1", 1e-5, 5e8)))
    plan.save(made, tmp_path / "plan.json")
    assert plan.load(tmp_path / "plan.json") == made
    assert made.provenance.solver == "binary_search"
    text = explanation(made)
    assert "\n\nShares per rail\n" in text and "\n\nPredicted times over the rails\n" in text
    assert max(map(len, (rail_table(made.rails) + "\n" + rail_times_table(made.rails)).splitlines())) <= 100
    assert "eth0 66.7%, eth1 33.3%" in text
    assert "applies the shares, without their channels and cores" in text
