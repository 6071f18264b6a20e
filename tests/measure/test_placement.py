"""Hosts, racks, uplinks and NICs from synthetic times with a known result."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcomm.measure.placement import (
    PairRound,
    PairTimes,
    describe,
    kinds,
    matchings,
    shuffled_matchings,
)
from jaxcomm.profile.files import validate
from jaxcomm.profile.find_racks import find_racks

ALPHA, BETA = 20e-6, 1e-9
SIZES = (1024, 65536, 4194304)
NOISE = 0.1


def noisy(dice: np.random.Generator, value: float) -> float:
    return float(value * dice.uniform(1 - NOISE, 1 + NOISE))


def made_up(
    host: list[int],
    rack: list[int],
    *,
    uplink: float = 1.0,
    shared_nic: bool = False,
    within: float = 1.0,
    nics: dict[int, float] | None = None,
    seed: int = 0,
    noise: bool = True,
) -> PairTimes:
    """Synthetic exchanges: rank r is on `host[r]`, host h is in `rack[h]`, and the ranks of a rack share its uplink."""
    dice, nics = np.random.default_rng(seed), nics or {}

    def seconds(pairs: list[tuple[int, int]]) -> np.ndarray:
        rows = []
        for a, b in pairs:
            ends = (host[a], host[b])
            beta = BETA * within
            if ends[0] != ends[1]:
                crossing = [{host[x], host[y]} for x, y in pairs if host[x] != host[y]]
                busy = max(sum(end in both for both in crossing) for end in ends) if shared_nic else 1
                beta = BETA * max(nics.get(end, 1.0) for end in ends) * busy
                if rack[ends[0]] != rack[ends[1]]:
                    across = [(x, y) for x, y in pairs if rack[host[x]] != rack[host[y]]]
                    through = max(sum(rack[end] in (rack[host[x]], rack[host[y]]) for x, y in across) for end in ends)
                    beta = max(beta, BETA * uplink * through)
            rows.append([ALPHA + size * beta for size in SIZES])
        table = np.array(rows)
        return table * dice.uniform(1 - NOISE, 1 + NOISE, (len(rows), 1)) if noise else table

    ranks = len(host)
    names = tuple(f"host{each}" for each in host)
    alone = tuple(PairRound((pair,), seconds([pair])) for pair in combinations(range(ranks), 2))
    loaded = tuple(PairRound(tuple(pairs), seconds(pairs)) for pairs in shuffled_matchings(ranks, 3, 63))
    return PairTimes(SIZES, names, alone, loaded)


def profile(found: PairTimes) -> dict[str, object]:
    """The fields that `describe` returns, validated as part of a profile."""
    document = {
        "format": "jaxcomm-profile",
        "version": 1,
        "ranks": len(found.hosts),
        **describe(found),
        "provenance": {"source": "made up", "tool": "test"},
    }
    return validate(document, "made up").model_dump()


@pytest.mark.parametrize("ranks", range(2, 12))
def test_each_two_ranks_meet_once(ranks: int) -> None:
    rounds = matchings(range(ranks))
    assert sorted(chain(*rounds)) == [*combinations(range(ranks), 2)]
    assert all(len({*chain(*pairs)}) == 2 * len(pairs) for pairs in rounds)
    assert len(rounds) == ranks - 1 + ranks % 2


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(2, 5), min_size=2, max_size=4),
    ratio=st.floats(1.5, 20),
    seed=st.integers(0, 2**32 - 1),
)
def test_racks_are_recovered_from_noisy_times(sizes: list[int], ratio: float, seed: int) -> None:
    dice = np.random.default_rng(seed)
    home = dice.permutation([rack for rack, size in enumerate(sizes) for _ in range(size)])
    times = np.where(home[:, None] == home[None], 1.0, ratio) * BETA
    noise = dice.uniform(1 - NOISE, 1 + NOISE, times.shape)
    times = times * (noise + noise.T) / 2  # the mean of both directions
    np.fill_diagonal(times, np.nan)
    found = find_racks(times)
    assert {frozenset(rack) for rack in found.racks} == {
        frozenset(np.flatnonzero(home == rack).tolist()) for rack in range(len(sizes))
    }
    assert {*found.nics} == {1.0}


@settings(max_examples=100, deadline=None)
@given(hosts=st.integers(1, 16), seed=st.integers(0, 2**32 - 1), missing=st.booleans())
def test_noise_makes_no_racks(hosts: int, seed: int, missing: bool) -> None:
    dice = np.random.default_rng(seed)
    noise = np.triu(dice.uniform(1 - NOISE, 1 + NOISE, (hosts, hosts)), 1)
    times = BETA * (noise + noise.T)
    np.fill_diagonal(times, np.nan)
    if missing and hosts > 4:
        times[0, 3] = times[3, 0] = np.nan
    assert find_racks(times) == ((tuple(range(hosts)),), (1.0,) * hosts)


def test_racks_of_which_some_pairs_never_met() -> None:
    home = np.arange(12) % 3
    times = np.where(home[:, None] == home[None], 1.0, 3.0)
    times[0, 3] = times[3, 0] = times[1, 2] = times[2, 1] = np.nan
    assert find_racks(times).racks == ((0, 3, 6, 9), (1, 4, 7, 10), (2, 5, 8, 11))


@settings(max_examples=30, deadline=None)
@given(uplink=st.floats(1.5, 8), seed=st.integers(0, 2**32 - 1))
def test_uplinks_have_the_rate_of_all_that_goes_through(uplink: float, seed: int) -> None:
    found = profile(made_up([*range(6)], [0, 0, 1, 1, 0, 1], uplink=uplink, seed=seed))
    racks = found["racks"]
    assert [rack["ranks"] for rack in racks] == [[0, 1, 4], [2, 3, 5]]  # type: ignore[index, attr-defined]
    assert [rack["uplink"] for rack in racks] == pytest.approx([uplink] * 2, rel=0.2)  # type: ignore[attr-defined]
    assert found["hosts"] == [f"host{host}" for host in range(6)] and found["topology"] is None
    assert found["link"]["beta_s_per_byte"] == pytest.approx(BETA, rel=0.1)  # type: ignore[index]


def test_an_uplink_that_only_all_together_fill_shows_racks() -> None:
    """A transfer alone, or in a round in which few transfers cross the uplink, is as fast as within a rack."""
    found = profile(made_up([*range(8)], [0] * 4 + [1] * 4, uplink=0.6))
    assert [rack["ranks"] for rack in found["racks"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]  # type: ignore[attr-defined]
    assert [rack["uplink"] for rack in found["racks"]] == [1, 1]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("shared", "nic"), [(True, "host"), (False, "rank")])
def test_ranks_of_a_host_share_its_nic_or_do_not(shared: bool, nic: str) -> None:
    found = profile(made_up([0, 0, 0, 1, 1, 1], [0, 0], shared_nic=shared, within=0.25))
    topology = found["topology"]
    assert topology["hosts"] == (0, 0, 0, 1, 1, 1) and topology["nic"] == nic  # type: ignore[index]
    assert topology["slow"] == pytest.approx(4, rel=0.15)  # type: ignore[index]
    assert found["link"]["beta_s_per_byte"] == pytest.approx(BETA / 4, rel=0.1)  # type: ignore[index]
    assert not found["racks"]


def test_a_host_that_is_alone_has_a_slow_nic() -> None:
    found = profile(made_up([*range(5)], [0] * 5, nics={3: 4.0}))
    assert not found["racks"]
    assert found["nics"] == pytest.approx([1, 1, 1, 4, 1], rel=0.15)


def test_one_host_has_no_network() -> None:
    found = profile(made_up([0, 0, 0], [0]))
    assert (found["topology"], found["racks"], found["nics"]) == (None, [], [])
    assert found["hosts"] == ["host0"] * 3


def test_links_are_shown_by_where_the_ranks_are() -> None:
    found = made_up([0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 1, 1], uplink=4, within=0.5, noise=False)
    shown = {name: (alone, loaded) for name, alone, loaded in kinds(found, [[0, 1, 2, 3], [4, 5, 6, 7]])}
    assert [*shown] == ["on one host", "in one rack", "of two racks"]
    assert shown["on one host"][0].bytes_per_s == pytest.approx(2 / BETA)
    assert shown["of two racks"][0].bytes_per_s == pytest.approx(1 / (4 * BETA))
    assert shown["of two racks"][1].bytes_per_s < 1 / (4 * BETA)  # under load, several pairs use the uplink
    assert shown["in one rack"][0].least_s == pytest.approx(ALPHA + SIZES[0] * BETA)
    assert [name for name, *_ in kinds(found, [])] == ["on one host", "of two hosts"]
