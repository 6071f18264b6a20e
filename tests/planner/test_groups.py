"""Groups by iteration: proved on every network, at most as slow as the paper's pattern, refused if broken."""

from __future__ import annotations

import importlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcomm import plan, planner, profile
from jaxcomm.cli import main
from jaxcomm.errors import PlanError, ProfileError
from jaxcomm.plan.consensus import averaged, contraction
from jaxcomm.plan.files import validate
from jaxcomm.plan.groups import GroupCosts, Groups, prove
from jaxcomm.planner.groups import decide
from jaxcomm.planner.groups.divisions import paper, path
from jaxcomm.profile import Bucket, Link, Profile, Provenance, Rack
from jaxcomm.report.plan import explanation
from jaxcomm.simulate import baselines

ALPHA, BETA, NBYTES = 1e-5, 4e-10, 2**26


def make(sizes: list[int], uplinks: list[float], nics: list[float] | None = None, nbytes: int = NBYTES) -> Profile:
    ends = list(itertools.accumulate(sizes, initial=0))
    racks = [
        Rack(name=str(i), ranks=list(range(*pair)), uplink=uplink)
        for i, (pair, uplink) in enumerate(zip(itertools.pairwise(ends), uplinks, strict=True))
    ]
    return Profile(
        ranks=ends[-1],
        link=Link(alpha_s=ALPHA, beta_s_per_byte=BETA, source="a link"),
        racks=racks,
        nics=nics or [],
        buckets=[Bucket(name="all", bytes=nbytes, ready_s=0.0)] if nbytes else [],
        provenance=Provenance(source="a test", tool="pytest"),
    )


def decided(cluster: Profile) -> Groups:
    found = decide(cluster)
    assert found is not None
    prove(found, cluster.ranks, ALPHA, BETA)
    return found


@st.composite
def clusters(draw: st.DrawFn) -> Profile:
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) > 1))
    slowness = st.sampled_from([1.0, 1.0, 1.5, 4.0])
    uplinks = draw(st.lists(slowness, min_size=len(sizes), max_size=len(sizes)))
    nics = draw(st.lists(st.sampled_from([1.0] * 7 + [3.0]), min_size=sum(sizes), max_size=sum(sizes)))
    return make(sizes, uplinks, nics, draw(st.sampled_from([1, 2**16, 2**26])))


@settings(max_examples=10, deadline=None)
@given(clusters(), st.integers(0, 99))
def test_every_network_gets_groups_that_agree_at_the_least_cost(cluster: Profile, seed: int) -> None:
    found = decide(cluster)
    if found is None:
        assert len(cluster.racks) == 1 and len(set(cluster.nics)) == 1
        return
    prove(found, cluster.ranks, ALPHA, BETA)
    assert found.rho < 1
    assert max(found.seconds) == found.bound  # no pattern can beat the bound
    if found.pattern.rho < 1 - 1e-9:
        assert max(found.seconds) <= found.pattern.seconds
    values = np.random.default_rng(seed).standard_normal((cluster.ranks, 3))
    distance = np.linalg.norm(values - values.mean(axis=0), axis=0)
    for row in found.table:
        for index in np.unique(row):
            values[row == index] = values[row == index].mean(axis=0)
    left = np.linalg.norm(values - values.mean(axis=0), axis=0)
    assert (left <= (found.rho + 1e-9) * distance).all()  # ρ is rounded to nine decimals


@settings(max_examples=10, deadline=None)
@given(clusters())
def test_pairs_along_a_path_always_agree(cluster: Profile) -> None:
    found = decide(cluster)
    if found is None:
        return
    links = GroupCosts(found.racks, found.nics, found.bytes, ALPHA, BETA)
    pairs = path(links)
    parts: dict[str, Any] = {
        "iterations": tuple(tuple(map(tuple, groups)) for groups in pairs),
        "seconds": tuple(links.seconds(groups) for groups in pairs),
        "rho": contraction(pairs, cluster.ranks),
    }
    prove(found.model_copy(update=parts), cluster.ranks, ALPHA, BETA)
    assert max(parts["seconds"]) <= found.bound * (1 + 1e-8)


def divisions(ranks: list[int]) -> list[list[list[int]]]:
    """Every partition of the ranks into groups."""
    if not ranks:
        return [[]]
    first, *rest = ranks
    found = []
    for division in divisions(rest):
        found.append([[first], *division])
        found += [[*division[:i], [first, *group], *division[i + 1 :]] for i, group in enumerate(division)]
    return found


@pytest.mark.parametrize(
    ("sizes", "uplinks", "nics"),
    [([3, 2], [4.0, 1.0], None), ([1, 2, 2], [1.0, 2.0, 3.0], None), ([5], [1.0], [1.0, 1.0, 3.0, 1.0, 1.0])],
)
def test_no_pattern_that_agrees_is_cheaper_among_all_divisions(sizes: Any, uplinks: Any, nics: Any) -> None:
    found = decided(make(sizes, uplinks, nics))
    links = GroupCosts(found.racks, found.nics, found.bytes, ALPHA, BETA)

    def allowed(division: list[list[int]]) -> bool:
        crossed = [rack for group in division for rack in links.crossed(group)]
        return len(crossed) == len(set(crossed))

    every = [division for division in divisions(list(range(sum(sizes)))) if allowed(division)]
    cheaper = [division for division in every if links.seconds(division) < found.bound * (1 - 1e-6)]
    assert contraction(cheaper, sum(sizes)) == pytest.approx(1)  # even all of these together leave some ranks apart
    assert len(cheaper) < len(every)


def test_contraction_is_the_norm_of_the_product() -> None:
    found = decided(make([5, 3], [4.0, 4.0]))
    product = np.eye(8)
    for row in found.table:
        same = row[:, None] == row[None, :]
        product = same / same.sum(axis=1) @ product
    assert found.rho == pytest.approx(np.linalg.norm(product - 1 / 8, 2), abs=1e-8)
    assert max(abs(np.sort(np.linalg.eigvals(product - 1 / 8)))) <= found.rho + 1e-8


def test_the_paper_s_examples() -> None:
    """A slow uplink (figure 5) and a slow NIC (figure 6) are used by a pair only. Other ranks form larger groups."""
    slow_uplink = decided(make([4] * 4, [4.0, 1.0, 1.0, 1.0]))
    for groups in paper(GroupCosts(slow_uplink.racks, slow_uplink.nics, NBYTES, ALPHA, BETA)):
        assert sorted(map(len, groups)) == [2, 2, 3, 3, 3, 3]
    slow_card = decided(make([8], [1.0], [1.0] * 4 + [3.0] + [1.0] * 3))
    for groups in slow_card.iterations:
        assert max(len(group) for group in groups if 4 in group) <= 2


def test_two_racks_of_two_agree_exactly_where_the_paper_s_turns_never_do() -> None:
    found = decided(make([2, 2], [4.0, 4.0]))
    assert (found.rho, found.pattern.rho) == (0.0, pytest.approx(1.0))


def test_racks_agree_exactly_after_one_turn_of_pairs_across() -> None:
    found = decided(make([4, 4], [4.0, 4.0]))
    assert (found.period, found.rho, found.status) == (5, 0.0, "OPTIMAL")
    assert found.iterations[0] == ((0, 1, 2, 3), (4, 5, 6, 7)) and found.mean_s < found.bound


def test_uneven_racks_leave_half_of_what_one_period_at_random_does() -> None:
    found = decided(make([3, 2, 2], [5.0, 2.0, 2.0]))
    assert found.rate <= 0.48 and found.left <= 0.4


def test_no_pattern_of_up_to_four_iterations_leaves_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    brute: Any = importlib.import_module("groups")
    every = [*brute.networks()]
    assert len(every) == 45
    for row in (brute.compared(links, 4) for links in every[3::11]):
        assert row.ours <= row.best * (1 + 1e-6)


def test_the_spread_is_that_of_a_walk_that_is_averaged_for_ever() -> None:
    found = decided(make([3, 2, 2], [5.0, 2.0, 2.0]))
    walk = np.random.default_rng(0).standard_normal((400, 7, 500))
    values, seen = np.zeros((7, 500)), []
    for moves, groups in zip(walk, itertools.cycle(found.iterations), strict=False):
        values = averaged(values + moves, groups)
        seen.append(np.square(values - values.mean(axis=0)).mean(axis=1))
    assert found.spread == pytest.approx(np.sqrt(np.mean(seen[found.period * 4 :], axis=0)), rel=0.02)


def test_nobody_is_grouped_without_racks_or_slow_cards() -> None:
    assert decide(make([8], [1.0])) is None
    assert decide(make([8], [1.0]).model_copy(update={"racks": []})) is None
    slow = make([8], [1.0], [2.0] + [1.0] * 7).model_copy(update={"racks": []})
    assert decided(slow).racks[0].ranks == tuple(range(8))


@pytest.mark.parametrize("racks", [[], [Rack(name="all", ranks=list(range(1025)))]], ids=["no rack", "one rack"])
def test_more_ranks_than_groups_may_have_are_planned_where_nobody_is_grouped(racks: list[Rack]) -> None:
    link = Link(alpha_s=1e-6, beta_s_per_byte=1e-10, source="a link")
    many = Profile(ranks=1025, link=link, racks=racks, provenance=Provenance(source="a test", tool="pytest"))
    assert planner.plan(many).groups is None


def test_equal_profiles_give_equal_plans_that_survive_a_file(tmp_path: Path) -> None:
    made = planner.plan(make([5, 3], [4.0, 4.0]))
    assert plan.encode(made) == plan.encode(planner.plan(make([5, 3], [4.0, 4.0])))
    plan.save(made, tmp_path / "plan.json")
    loaded = plan.load(tmp_path / "plan.json")
    assert loaded == made
    assert loaded.groups and loaded.groups.table.shape == (loaded.groups.period, 8)
    plan.verify(loaded)
    text = explanation.explanation(loaded)
    assert "not over all ranks" in text and "the paper's pattern" in text and "Racks of 5 + 3 ranks" in text


def test_bytes_may_be_given_and_too_many_ranks_are_a_mistake() -> None:
    assert decide(make([2, 2], [4.0, 4.0], nbytes=0), 10**6)
    with pytest.raises(ProfileError, match="at most 1024 ranks; these are 1026"):
        decide(make([513, 513], [4.0, 4.0]))


def test_command_plans_for_racks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile.save(make([8], [1.0], nbytes=0), tmp_path / "profile.json")
    words = [str(tmp_path / "profile.json"), "--out", str(tmp_path / "plan.json"), "--racks", "5+3"]
    assert main(["plan", *words]) != 0
    assert "--model-bytes" in capsys.readouterr().err
    assert main(["plan", *words, "--uplink", "2.5", "--model-bytes", "1MiB"]) == 0
    groups = plan.load(tmp_path / "plan.json").groups
    assert groups and groups.bytes == 2**20
    assert [(len(rack.ranks), rack.uplink) for rack in groups.racks] == [(5, 2.5), (3, 2.5)]


def period(groups: dict[str, Any]) -> int:
    return len(groups["iterations"])


Change = Callable[[dict[str, Any]], Any]
BROKEN: dict[str, tuple[Change, str]] = {
    "rank twice": (lambda g: g["iterations"][1].append([0]), r"iterations\[1\]\[\d+\] has rank 0, which \[0\] has"),
    "rank nowhere": (lambda g: g["iterations"][2].pop(), r"iterations\[2\] has no place for rank"),
    "rank too large": (lambda g: g["iterations"][0][0].append(8), r"iterations\[0\]\[0\] has rank 8; .* 0 to 7"),
    "two groups on an uplink": (
        lambda g: g["iterations"].__setitem__(3, [[0, 5], [1, 6], [2, 3, 4, 7]]),
        r"iterations\[3\]\[1\] crosses the uplink of groups.racks\[0\] with rank 1, and so does \[0\]",
    ),
    "never agree": (
        lambda g: g.update(
            iterations=[[[0, 1, 2, 3, 4], [5, 6, 7]]] * period(g),
            seconds=[8 * (ALPHA + NBYTES / 5 * BETA)] * period(g),
        ),
        r"over the period of \d+ iterations nothing of rank 5 reaches rank 0",
    ),
    "other rho": (lambda g: g.update(rho=0.5), r"groups.rho is .*, but these groups have"),
    "other seconds": (lambda g: g["seconds"].__setitem__(4, 1e-3), r"groups.seconds\[4\] is 0.001, but"),
    "other bound": (lambda g: g.update(bound=1e-3), r"groups.bound is 0.001, but these groups have"),
    "seconds missing": (lambda g: g["seconds"].pop(), r"groups.seconds has \d+ entries; \d+ are needed"),
    "NICs missing": (lambda g: g["nics"].pop(), r"groups.nics has 7 entries; 8 are needed"),
    "rank in no rack": (lambda g: g["racks"][1]["ranks"].pop(), r"groups.racks has no place for rank 7"),
    "too long": (
        lambda g: g.update(iterations=g["iterations"][:1] * 9000, seconds=g["seconds"][:1] * 9000),
        r"9000 iterations of 8 ranks; at most 1024 ranks are allowed, and 65536",
    ),
}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    made = planner.plan(make([5, 3], [4.0, 4.0]))
    return made.model_dump(mode="json", exclude={"hash"})


@pytest.mark.parametrize("name", BROKEN)
def test_broken_groups_are_refused(document: dict[str, Any], name: str, tmp_path: Path) -> None:
    change, message = BROKEN[name]
    copy = plan.encode(validate(document, "plan"))
    fresh = json.loads(copy)
    fresh.pop("hash")
    change(fresh["groups"])
    broken = validate(fresh, "broken")
    plan.save(broken, tmp_path / "plan.json")
    with pytest.raises(PlanError, match=message):
        plan.load(tmp_path / "plan.json")
    with pytest.raises(PlanError, match=message):
        plan.verify(broken)


def test_table_of_costs_by_hand() -> None:
    """The paper's Table II for C = 2, G = 4, S = 1000, α = 1, β₁ = 1, β₂ = 3, one server and four chunks."""
    given = baselines.RackedWorkers(2, 4, 1000, 1.0, 1.0, 3.0)
    found = {
        "ps": baselines.ps(given),
        "ring": baselines.ring(given),
        "double_tree": baselines.double_tree(given, 4),
        "hierarchical": baselines.hierarchical(given),
        "gossip": baselines.gossip(given),
        "ds_sync": baselines.ds_sync(given),
    }
    assert found == {
        "ps": (14, 30000),
        "ring": (14, 5250),
        "double_tree": (14, 10500),
        "hierarchical": (8, 4500),
        "gossip": (2, 12000),
        "ds_sync": (2, 6000),
    }
    best = min(baselines.double_tree(given, k).seconds for k in range(1, 500))
    assert baselines.double_tree(given).seconds == pytest.approx(best)
