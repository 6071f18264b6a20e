"""Nobody waits for what a process that is gone has not published."""

from __future__ import annotations

import threading
import time

import pytest

from jaxcomm import ffi, jax_compat
from jaxcomm.distributed import store
from jaxcomm.distributed.rails import outages
from jaxcomm.distributed.rails.outages import ProcessGone
from tests.distributed.stores import Store

LEFT = {"process": 1, "why": "process 1 has left", "has_left": True}
DIED = {"process": 2, "why": "process 2 has been cut off: it sent garbage.\n  Cure: run the same.", "has_left": False}


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store()
    monkeypatch.setattr(jax_compat, "key_value_store", lambda: made)
    monkeypatch.setattr(ffi, "gone", lambda: [LEFT, DIED])
    monkeypatch.setattr(store, "_LOOK_S", 0.01)
    return made


@pytest.mark.usefixtures("values")
def test_a_process_that_is_gone_is_named_with_the_reason() -> None:
    words = r"^process 2 has not come: process 2 has been cut off: it sent garbage\.\n  Cure: start all processes again"
    with pytest.raises(ProcessGone, match=words) as error:
        store.lookup("come/2", "process 2 has not come", 2)
    assert (error.value.has_left, error.value.why.count("\n")) == (False, 0)
    with pytest.raises(ProcessGone, match="process 1 has left") as error:
        outages.require_processes([0, 1, 3], "they plan together")
    assert error.value.has_left
    outages.require_processes([0, 3], "they plan together")


def test_what_it_published_before_counts_and_others_are_awaited(values: Store) -> None:
    values.key_value_set("jaxcomm/come/2", "early")
    assert store.lookup("come/2", "process 2 has not come", 2) == "early"

    def publish() -> None:
        time.sleep(0.05)
        values.key_value_set("jaxcomm/come/3", "late")

    thread = threading.Thread(target=publish)
    thread.start()
    assert store.lookup("come/3", "process 3 has not come", 3) == "late"
    thread.join()
