"""An error in the first process is raised in all other processes, too."""

from __future__ import annotations

from types import SimpleNamespace

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
