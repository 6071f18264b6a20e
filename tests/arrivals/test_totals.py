"""The statistics that are made of recorded arrivals."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from jaxcomm import profile
from jaxcomm.arrivals import records
from jaxcomm.arrivals.records import DeviceCalls, Rank, Recorded, WatchedSite
from jaxcomm.arrivals.totals import Totals

SITE = WatchedSite("psum", "data", "lax", 4096, "train.py:57", ((Rank(0, 0), Rank(1, 1)),))


@pytest.fixture(autouse=True)
def one_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key is the same site."""
    monkeypatch.setattr(records, "site", lambda key: SITE)


def calls(device: int, took_s: float, numbers: Iterable[int], ended: int) -> Recorded:
    """Calls of one device that took the same time."""
    return {"7": {device: DeviceCalls(ended, ended, False, 1.0, dict.fromkeys(numbers, took_s))}}


def test_the_rank_that_took_the_least_time_was_last() -> None:
    totals = Totals(0, lambda key: 0)
    (site,) = totals.update(calls(0, 0.5, range(1, 5), 4), {1: calls(1, 0.2, range(1, 5), 4)})
    assert (site["calls"], site["late"], site["ranks"]) == (4, [0, 4], 2)
    assert site["arrivals"] == [pytest.approx([0, 0.3])] * 4
    assert site["wait_s"] == pytest.approx([1.2, 0]) and site["transfer_s"] == pytest.approx(0.8)


def test_a_profile_has_these_arrivals() -> None:
    totals = Totals(0, lambda key: 0)
    found = profile.from_stats(totals.update(calls(0, 0.5, range(1, 5), 4), {1: calls(1, 0.2, range(1, 5), 4)}))
    assert found.ranks == 2
    assert found.arrivals == [pytest.approx((0, 0.3))] * 3


def test_a_sample_counts_for_all_calls_once() -> None:
    totals = Totals(0, lambda key: 0)
    totals.update(calls(0, 0.5, [8, 16], 20), {1: calls(1, 0.2, [16, 24], 25)})
    (site,) = totals.update(calls(0, 0.5, [16, 24], 30), {1: calls(1, 0.2, [16, 24], 30)})
    assert (site["calls"], site["late"], len(site["arrivals"])) == (30, [0, 30], 2)
    assert site["wait_s"] == pytest.approx([9.0, 0])


def test_without_the_others_calls_are_only_counted() -> None:
    (site,) = Totals(0, lambda key: 2).update(calls(0, 0.5, [1, 2], 2), {})
    assert (site["calls"], site["failed"], site["arrivals"], site["wait_s"]) == (2, 2, [], [0, 0])


def test_a_reset_forgets_the_calls_so_far() -> None:
    totals = Totals(0, lambda key: 0)
    totals.update(calls(0, 0.5, [1, 2], 2), {1: calls(1, 0.2, [1, 2], 2)})
    totals.reset(calls(0, 0.5, [], 3))
    (site,) = totals.update(calls(0, 0.5, [1, 2, 3, 4], 4), {1: calls(1, 0.2, [1, 2, 3, 4], 4)})
    assert (site["calls"], len(site["arrivals"])) == (1, 1)
