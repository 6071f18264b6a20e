"""The calls of a run, from its statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxcomm import ffi
from jaxcomm.auto_plan.latest_calls import LatestCalls, busiest


def site(plan: str, nbytes: int, calls: int, *, ranks: int = 2, own: bool = False) -> dict[str, Any]:
    kept = [[0.0, 1e-3 * call] for call in range(calls)][-256:]
    return {
        "name": "psum",
        "axes": "data",
        "plan": plan,
        "ranks": ranks,
        "bytes": nbytes,
        "calls": calls,
        "arrivals": kept,
        "after_arrival_s": [1e-3] * len(kept),
        "work_s": [[0.1] * ranks] if own else [],
    }


def test_calls_are_those_of_all_ranks_under_the_plan_since_the_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    sites = [site("auto", 64, 10), site("auto", 4096, 10), site("direct", 64, 9), site("auto", 64, 9, ranks=3)]
    monkeypatch.setattr(ffi, "sites", lambda: sites)
    latest = LatestCalls(2)
    assert {key: (calls.number, calls.lately) for key, calls in latest.look("auto").items()} == {
        ("auto", ("psum", "data", 64)): (10, 10),
        ("auto", ("psum", "data", 4096)): (10, 10),
    }
    latest.mark()
    assert latest.look("auto") == {}
    sites[0] = site("auto", 64, 13)
    found = latest.look("auto")["auto", ("psum", "data", 64)]
    assert (found.number, found.lately) == (3, 3)
    np.testing.assert_allclose(found.arrivals[:, 1], [0.010, 0.011, 0.012])
    sites[0] = site("auto", 64, 5)  # the user has reset the statistics
    assert latest.look("auto")["auto", ("psum", "data", 64)].number == 5
    sites[0] = site("auto", 64, 14)
    assert latest.look("auto")["auto", ("psum", "data", 64)][:2] == (14, 9)


def test_groups_that_change_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ffi, "sites", lambda: [site("auto", 64, 10, own=True)])
    assert LatestCalls(2).look("auto") == {}


def test_the_busiest_site_moved_most_bytes_lately(monkeypatch: pytest.MonkeyPatch) -> None:
    sites = [site("auto", 64, 100), site("auto", 4096, 3), site("plan", 64, 500)]
    monkeypatch.setattr(ffi, "sites", lambda: sites)
    latest = LatestCalls(2)
    assert busiest(latest.look("auto")) == ("auto", ("psum", "data", 4096))
    sites[0] = site("auto", 64, 101)
    assert busiest(latest.look("auto", "plan")) == ("auto", ("psum", "data", 64))
    assert busiest(latest.look("auto", "plan")) is None
