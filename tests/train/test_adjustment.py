"""Adjusted groups: a rank that becomes slow gets small groups, without another compilation."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxcomm import ffi, planner
from jaxcomm.errors import PlanError
from jaxcomm.plan.groups import RackRanks
from jaxcomm.planner.groups.choose import LONG, PERIODS
from jaxcomm.profile import Link, Profile, Provenance
from jaxcomm.train import adjust_groups, divide_and_shuffle, group_table
from jaxcomm.train.divide_and_shuffle import ROWS
from jaxcomm.train.group_network import GroupNetwork
from jaxcomm.train.recent_averages import RecentAverages

RANKS, SLOW, DELAY = 8, 6, 0.03


def plan(**fields):
    link = Link(alpha_s=1e-5, beta_s_per_byte=1e-9, source="a test")
    racks = [{"name": f"rack {i}", "ranks": list(range(4 * i, 4 * i + 4)), "uplink": 4.0} for i in range(2)]
    known = {"racks": racks, "collective": {"bytes": 2**20, "seconds": 1.0}} | fields
    return planner.plan(Profile(ranks=RANKS, link=link, provenance=Provenance(source="a test", tool="pytest"), **known))


@pytest.fixture(scope="module")
def two_racks():
    return plan()


@pytest.fixture(scope="module", params=["the host waits for every step", "the ranks run on by themselves"])
def train(two_racks, request):
    """Returns a function that runs steps in which the slow rank's own work takes `delay` seconds longer."""
    at_once = 13 if "run on" in request.param else 1
    mesh = jax.make_mesh((RANKS,), ("data",), axis_types=(AxisType.Auto,))
    average = divide_and_shuffle(two_racks, "data")

    def step(params, start, table, delay):
        late = jnp.where(lax.axis_index("data") == SLOW, delay, 0.0)
        return lax.fori_loop(
            start, start + at_once, lambda step, params: average(ffi.delay(params, late), step, table), params
        )

    specs = {"in_specs": (P("data"), P(), P(), P()), "out_specs": P("data")}
    compiled = jax.jit(jax.shard_map(step, mesh=mesh, **specs), donate_argnums=0)

    def run(params, steps, table, delay):
        params = jax.device_put(params, jax.NamedSharding(mesh, P("data")))
        for number in range(0, steps, at_once):
            params = jax.block_until_ready(compiled(params, jnp.int32(number), table, jnp.float32(delay)))
        return np.asarray(params)

    run.compiled = compiled
    return run


def around(groups, rank):
    """The sizes of this rank's groups in a period."""
    return [len(group) for groups in groups.iterations for group in groups if rank in group]


def test_a_rank_that_turns_slow_is_kept_in_the_smallest_groups_and_comes_back(two_racks, train):
    params = np.random.default_rng(0).standard_normal((RANKS, 10)).astype(np.float32)
    mean = params.mean(axis=0)
    groups, tables, found = two_racks.groups, [], []
    for delay in (0.0, DELAY, 0.0):
        ffi.reset_stats()
        params = train(params, 13, jnp.asarray(group_table(groups)), delay)
        found.append(adjust_groups(two_racks, groups, steps=12))
        groups = found[-1].groups
        tables.append(found[-1].table)
        np.testing.assert_allclose(params.mean(axis=0), mean, atol=1e-5)  # no table changes the mean over the ranks
    before, slow, after = found
    assert not before.changed and before.groups is two_racks.groups and before.reason.endswith("the groups stay.")
    assert slow.changed and slow.reason.endswith("the groups change."), slow.reason
    assert f"rank {SLOW} by " in slow.reason and slow.late_s[SLOW] == pytest.approx(DELAY, rel=0.5)
    assert max(around(slow.groups, SLOW)) == 2 < max(len(each) for groups in slow.groups.iterations for each in groups)
    assert max(around(two_racks.groups, SLOW)) > 2 or slow.groups != two_racks.groups
    assert after.late_s[SLOW] < DELAY / 4
    assert {table.shape for table in tables} == {group_table(two_racks).shape}
    assert train.compiled._cache_size() == 1


def site(own, **fields):
    """A site of `jaxcomm.stats()` whose `work_s` is `own`, with arrivals of ranks that do not wait for each other."""
    random = np.random.default_rng(1)
    arrivals = np.cumsum(np.array(own) + random.uniform(0, 0.1, np.shape(own)), axis=0)
    known = {"calls": len(own), "work_s": own, "arrivals": arrivals.tolist(), "after_arrival_s": [1e-3] * len(own)}
    return known | {"plan": "groups", "ranks": RANKS, "bytes": 2**20} | fields


def steps(late, count=16):
    """Steps of 10 ms with noise. Rank r takes `late[r]` seconds longer."""
    noise = np.random.default_rng(0).uniform(0, 1e-3, (count, RANKS))
    return (0.01 + noise + [late.get(rank, 0.0) for rank in range(RANKS)]).tolist()


def test_only_what_lasts_and_matters_changes_the_groups(two_racks):
    def adjusted(own, present=None, **options):
        return adjust_groups(two_racks, present, steps=16, sites=[site(own)], **options)

    assert "0 averages" in adjust_groups(two_racks, sites=[]).reason
    assert not adjusted(steps({SLOW: 0.1}, 7)).changed
    noise = adjusted(steps({}))
    assert not noise.changed and "nobody" in noise.reason and max(noise.late_s) < 1e-3
    once = np.array(steps({}))
    once[3, SLOW] += 1.0  # one slow step, as during an evaluation
    assert not adjusted(once.tolist()).changed
    lasting = adjusted(steps({SLOW: 0.02}))
    assert lasting.changed and set(around(lasting.groups, SLOW)) <= {1, 2}
    assert adjusted(steps({SLOW: 0.02})) == lasting
    again = adjusted(steps({SLOW: 0.02}), lasting.groups)
    assert not again.changed and again.groups == lasting.groups
    two = adjusted(steps({SLOW: 0.02, 1: 0.03}))
    assert f"rank 1 by 29.7 ms, rank {SLOW} by 19.9 ms;" in two.reason
    assert max(around(two.groups, 1)) == 2 and max(around(two.groups, SLOW)) <= 3  # rank 1's pair takes longest anyway


def test_the_average_that_moves_most_is_looked_at(two_racks):
    sites = [site(steps({0: 0.1}), bytes=4), site(steps({SLOW: 0.02})), site(steps({0: 0.1}), plan="direct")]
    found = adjust_groups(two_racks, sites=[*sites, site(steps({0: 0.1})[:8], ranks=4), site([])])
    assert "nobody" not in found.reason and found.late_s[0] < 1e-3 < found.late_s[SLOW]


def test_what_processes_have_seen_is_put_together(two_racks):
    own, ranks = np.array(steps({SLOW: 0.02})), np.arange(RANKS)
    whole = site(own.tolist())

    def of(here, calls, lost=0):
        """The site of a process with the ranks `here` that has recorded the calls from `lost` to `calls`."""
        rows = slice(lost, calls)
        known = np.where(np.isin(ranks, here), own, np.nan)[rows]
        part = site(known.tolist(), calls=calls, arrivals=whole["arrivals"][rows])
        return RecentAverages.read([part], RANKS, 16).text()

    merged = RecentAverages.merge([of([0, 2, 4], 16), of([1, 3, 5], 15), of([6, 7], 16, lost=2)])
    assert merged.calls == 15 and merged.steps == 13
    np.testing.assert_allclose(merged.work_s, own[2:15], atol=1e-6)
    alone = RecentAverages.read([site(own[2:15].tolist())], RANKS, 16)
    assert merged.step_s == pytest.approx(alone.step_s, rel=1e-3)
    np.testing.assert_allclose(merged.late_s, alone.late_s, atol=1e-6)
    assert RecentAverages.merge([of(ranks[:4], 16), RecentAverages.read([], RANKS, 16).text()]).steps == 0
    assert RecentAverages.merge([of(ranks[:4], 4), of(ranks[4:], 16, lost=8)]).steps == 0, "none in both"


def test_a_rank_whose_process_waits_for_each_step_is_not_late_because_its_neighbour_waited():
    random = np.random.default_rng(2)
    own = np.full((16, 2), 0.01)
    own[:, 0] += random.uniform(0, 0.1, 16)  # one rank of each process leaves its average early
    arrivals = np.tile([0.0, 1e-4], (16, 1))
    seen = [
        RecentAverages.read([site(rows.tolist(), ranks=4, arrivals=arrived.tolist())], 4, 16).text()
        for rows, arrived in (
            (np.hstack([own, np.full((16, 2), np.nan)]), np.hstack([arrivals, np.full((16, 2), np.nan)])),
            (np.hstack([np.full((16, 2), np.nan), own]), np.hstack([np.full((16, 2), np.nan), arrivals])),
        )
    ]
    assert RecentAverages.merge(seen).late_s.max() < 1e-3


def test_links_are_measured_when_averages_take_other_times_and_not_too_often(two_racks):
    planned = GroupNetwork.of(two_racks, two_racks.groups)
    assert not planned.has_changed(1.0) and planned.wait_s(0.0) == 0
    known = replace(planned, measured_at_s=50.0, measured_in_s=2.0, average_s=0.02)
    assert [known.has_changed(seconds) for seconds in (0.016, 0.02, 0.025, 0.027, 0.015)] == [False] * 3 + [True] * 2
    assert known.wait_s(60.0) == 190.0 and known.wait_s(251.0) == 0


def test_changes_of_the_network_are_reported(two_racks):
    planned = GroupNetwork.of(two_racks, two_racks.groups)
    assert planned.changes_from(planned) == "they are as before"
    slower = [RackRanks(ranks=rack.ranks, uplink=uplink) for rack, uplink in zip(planned.racks, (9, 4.1), strict=True)]
    found = replace(planned, racks=tuple(slower), nics=(*planned.nics[:-1], 2.0), beta_s_per_byte=2e-9)
    assert found.changes_from(planned) == (
        "a byte through the uplink of rack 0 takes 9 times as long as within a rack, after 4, "
        "a byte through the NIC of rank 7 takes 2 times as long as within a rack, after 1, "
        "1 MiB within a rack takes 2.1 ms, after 1.05"
    )
    mixed = [RackRanks(ranks=tuple(range(i, RANKS, 2)), uplink=4.0) for i in range(2)]
    moved = replace(planned, racks=tuple(mixed))
    assert moved.changes_from(planned) == "the racks are [0, 2, 4, 6] and [1, 3, 5, 7]"


def test_every_pattern_that_is_planned_has_a_row_in_the_table():
    assert max(LONG, max(PERIODS)) <= ROWS


def test_mistakes_are_named(two_racks, tmp_path):
    with pytest.raises(ValueError, match=r"steps is 7 and worth 0\.05; they must be at least 8 and at least 0"):
        adjust_groups(two_racks, steps=7)
    with pytest.raises(PlanError, match=r"has no groups: .*\n  Cure: plan with"):
        adjust_groups(plan(racks=[]))
    with pytest.raises(PlanError, match="cannot be read: No such file"):
        adjust_groups(tmp_path / "plan.json")
