"""Plans for random clusters: each is proved, and none is predicted to be slower than the best baseline."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxcomm import plan, planner, profile
from jaxcomm.profile import Profile

SOURCE = {"source": "a test", "tool": "pytest"}
TIME = st.floats(1e-7, 1e-3)


@st.composite
def ascending(draw, points):
    """A latency table in which larger sizes take no less time."""
    sizes = sorted(draw(st.sets(st.integers(10, 27), min_size=points, max_size=points)))
    seconds = sorted(draw(st.lists(st.floats(1e-6, 1e-1), min_size=points, max_size=points)))
    return [{"bytes": 2**size, "seconds": time} for size, time in zip(sizes, seconds, strict=True)]


@st.composite
def clusters(draw):
    """A profile of 2 to 8 ranks with any mixture of late ranks, hosts, racks, rails and gradients."""
    ranks = draw(st.integers(2, 8))
    document = {
        "format": "jaxcomm-profile",
        "version": 1,
        "ranks": ranks,
        "link": {"alpha_s": draw(TIME), "beta_s_per_byte": draw(st.floats(1e-12, 1e-8)), "source": "a test"},
        "provenance": SOURCE,
    }
    if draw(st.booleans()):
        late = draw(st.lists(st.tuples(st.integers(1, ranks - 1), st.floats(1e-5, 0.1)), min_size=1, max_size=2))
        row = [0.0] * ranks
        for rank, seconds in late:
            row[rank] = seconds
        document["arrivals"] = [row] * draw(st.integers(1, 3))
    if draw(st.booleans()):
        hosts = sorted(draw(st.lists(st.integers(0, 2), min_size=ranks, max_size=ranks)))
        order = {host: i for i, host in enumerate(dict.fromkeys(hosts))}
        nic, slow = draw(st.sampled_from(["rank", "host"])), draw(st.sampled_from([1.0, 2.0, 4.0]))
        document["topology"] = {"hosts": [order[host] for host in hosts], "nic": nic, "slow": slow}
    if draw(st.booleans()):
        hosts = document.get("topology", {}).get("hosts", range(ranks))
        cut = draw(st.sampled_from([0, *(rank for rank in range(1, ranks) if hosts[rank] != hosts[rank - 1])]))
        parts = [part for part in (range(cut), range(cut, ranks)) if part]
        document["racks"] = [
            {"name": f"rack {i}", "ranks": list(part), "uplink": draw(st.sampled_from([1.0, 2.0, 8.0]))}
            for i, part in enumerate(parts)
        ]
    if draw(st.booleans()):
        names = ["eth0", "eth1", "ib0"][: draw(st.integers(1, 3))]
        document["rails"] = [
            {"name": name, "transport": "tcp", "latency": draw(ascending(3)), "slowdown": draw(st.floats(1, 1.3))}
            for name in names
        ]
    count = draw(st.integers(0, 4))
    document["buckets"] = [
        {"name": f"layer {i}", "bytes": draw(st.integers(1, 2**26)), "ready_s": i * draw(st.floats(0, 0.01))}
        for i in range(count)
    ]
    if not count:
        document["collective"] = {"bytes": draw(st.integers(1, 2**26)), "seconds": 0.01}
    return profile.validate(document, "a test")


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cluster=clusters(), min_gain=st.sampled_from([0.02, 0.0]))
def test_every_plan_is_proved_and_never_slower_than_the_best_baseline(cluster: Profile, min_gain: float) -> None:
    made = planner.plan(cluster, min_gain=min_gain, time_limit=0.02)
    plan.verify(made)
    buckets = {bucket.bytes for bucket in (*made.step.planned, *made.step.gradients)} if made.step else set()
    for entry in made.collectives:
        times = entry.predicted
        assert times.lower_bound <= times.seconds * (1 + 1e-8)
        if entry.min_bytes == entry.max_bytes and entry.min_bytes in buckets:
            continue  # a bucket's schedule is chosen for the whole step, which is checked below
        baselines = [times.ring, times.halving_doubling, times.direct]
        if not min_gain and made.roles:
            baselines.append(times.broadcast)
        assert times.seconds <= min(baselines) * (1 + 1e-8), entry
    if made.step:
        assert made.step.seconds <= made.step.plain_seconds * (1 + 1e-8)
