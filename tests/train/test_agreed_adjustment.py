"""An error in the first process is raised in all other processes, too."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from jaxcomm.distributed import store
from jaxcomm.errors import JaxcommError
from jaxcomm.train import agreed_adjustment
from jaxcomm.train.recent_averages import RecentAverages

SEEN = RecentAverages(0, *(np.empty((0, 2)) for _ in range(3)), np.empty(0))


def broken(*_: object) -> bool:
    raise ArithmeticError("out of numbers")


@pytest.mark.parametrize(("is_due", "adjust"), [(broken, lambda *_: "new"), (lambda _: False, broken)])
def test_a_failure_of_the_first_process_is_everyones(is_due, adjust, monkeypatch):
    kept: dict[str, str] = {}
    monkeypatch.setattr(store, "publish", kept.setdefault)
    monkeypatch.setattr(store, "lookup", lambda key, *_: kept[key])
    monkeypatch.setattr(store, "remove", lambda _: None)
    monkeypatch.setattr(agreed_adjustment, "_numbers", lambda: iter([0]))
    monkeypatch.setattr(agreed_adjustment, "connected", lambda: SimpleNamespace(incarnations={0: 10}))
    monkeypatch.setattr(agreed_adjustment, "on_change", lambda after: None)
    with pytest.raises(ArithmeticError):
        agreed_adjustment.agree(SEEN, [[0, 1]], is_due, adjust)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with pytest.raises(JaxcommError, match=r"train.adjust_groups failed in process 0: out of numbers"):
        agreed_adjustment.agree(SEEN, [[0, 1]], is_due, adjust)


@pytest.mark.parametrize(("calls", "published"), [(507, 7), (3, 3)], ids=["a survivor", "after reset_stats"])
def test_calls_count_from_the_beginning_of_the_generation(calls, published, monkeypatch):
    """A process that has just joined counts from 0, so all must."""
    kept: dict[str, str] = {}
    changes: list[Any] = []
    sites = [
        {"plan": "groups", "ranks": 2, "bytes": 8, "calls": 500},
        {"plan": "direct", "ranks": 2, "bytes": 9, "calls": 9},
    ]
    monkeypatch.setattr(store, "publish", kept.setdefault)
    monkeypatch.setattr(store, "lookup", lambda key, *_: kept[key])
    monkeypatch.setattr(store, "remove", lambda _: None)
    monkeypatch.setattr(agreed_adjustment, "_numbers", lambda: iter([0]))
    monkeypatch.setattr(agreed_adjustment, "_calls_before", {})
    monkeypatch.setattr(agreed_adjustment, "connected", lambda: SimpleNamespace(incarnations={0: 10}))
    monkeypatch.setattr(agreed_adjustment, "on_change", changes.append)
    monkeypatch.setattr(agreed_adjustment.ffi, "sites", lambda: sites)
    agreed_adjustment.agree(SEEN, [[0, 1]], lambda _: False, lambda *_: "")
    changes[0](None)  # the next generation
    kept.clear()
    agreed_adjustment.agree(replace(SEEN, calls=calls), [[0, 1]], lambda _: False, lambda *_: "")
    assert json.loads(kept["groups/0/seen/0"])["calls"] == published
