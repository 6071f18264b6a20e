"""Whom the text of an overdue call names."""

from __future__ import annotations

import pytest

from jaxcomm.arrivals import deadline_error, rows
from jaxcomm.arrivals.deadline_error import OpenCall
from jaxcomm.arrivals.records import DeviceCalls, Rank, WatchedSite
from jaxcomm.arrivals.rows import ArrivalsRow, Latest
from jaxcomm.errors import DeadlineError, JaxcommError

GROUP = tuple(Rank(process, 10 * process) for process in range(3))
SITE = WatchedSite("psum", "data", "lax", 4096, "train.py:57", (GROUP,))
CALL = OpenCall("7", SITE, GROUP[0], 12, 4.0)
HEAD = "DeadlineError: psum #12 over 'data' (4 KiB, plan lax): "


def row(
    process: int, arrived: int, *, is_open: bool, latest: Latest | None = None, has_ended: bool = False
) -> ArrivalsRow:
    """The row of a process that has arrived at so many calls."""
    calls = DeviceCalls(arrived, arrived - is_open, is_open, 3.5, {arrived - 1: 0.25})
    found = {} if latest is None else {10 * process: latest}
    return ArrivalsRow(process, f"node-{process}", 5, has_ended, found, {"7": {10 * process: calls}} if arrived else {})


WAITS = row(1, 12, is_open=True)
LAST = Latest("7", "psum #11 over 'data' at train.py:57", False, 3.5)
OTHER = Latest("8", "pmax #3 over 'model' at eval.py:9", True, 2.0)
SILENCE = "; the process reports nothing any more: it is stopped, killed or unreachable."
IN_PYTHON = row(2, 11, is_open=False, latest=LAST)

# The row of the missing rank's process, whether the process is silent, and the place in words.
PLACES: dict[str, tuple[ArrivalsRow | None, bool, str]] = {
    "in Python": (IN_PYTHON, False, ", and was last in psum #11 over 'data' at train.py:57, 3.5 s ago."),
    "stopped": (IN_PYTHON, True, f", and was last in psum #11 over 'data' at train.py:57{SILENCE}"),
    "in another call": (
        row(2, 11, is_open=False, latest=OTHER),
        False,
        ", and is in pmax #3 over 'model' at eval.py:9, for 2.0 s.",
    ),
    "ended": (row(2, 11, is_open=False, latest=LAST, has_ended=True), True, ", which has ended."),
    "no call": (row(2, 0, is_open=False), False, ", and has been in no call."),
    "no row": (None, False, ", which has recorded no call yet."),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_missing_rank_is_named_with_its_place(name: str) -> None:
    missing, is_silent, text = PLACES[name]
    found = deadline_error.find(CALL, {1: WAITS} | ({2: missing} if missing else {}), {2} if is_silent else ())
    place = "process 2 on node-2" if missing else "process 2"
    assert found.text == (
        f"{HEAD}rank 2 of 3 has not arrived after 4.0 s; 0,1 wait.\n  Rank 2 is {place}{text}\n"
        "  This call is at train.py:57."
    )
    assert found.since_s == [4.0, 3.5, None]
    error = DeadlineError(found.text, found.record)
    assert (error.missing, error.waiting, error.number, error.name) == ((2,), (0, 1), 12, "psum")


def test_several_missing_ranks_are_named_together() -> None:
    found = deadline_error.find(CALL, {}, set())
    assert found.text.startswith(f"{HEAD}ranks 1,2 of 3 have not arrived after 4.0 s; 0 waits.\n")


def test_a_collective_that_hangs_although_all_have_arrived_says_so() -> None:
    found = deadline_error.find(CALL, {1: WAITS, 2: row(2, 12, is_open=False)}, set())
    assert found.text.startswith(
        f"{HEAD}all 3 ranks have arrived, but the collective has not ended on ranks 0,1 after 4.0 s."
    )
    assert found.record["missing"] == []


def test_without_the_store_no_rank_is_blamed() -> None:
    found = deadline_error.without_rows(CALL)
    assert "rank 0 of 3 has waited for 4.0 s, and the job's key-value store does not answer" in found.text
    assert (found.record["missing"], found.record["waiting"]) == ([], [0])


def test_many_ranks_become_ranges() -> None:
    ranks = tuple(Rank(process, process) for process in range(64))
    call = OpenCall("7", SITE._replace(groups=(ranks,)), ranks[5], 1, 60.0)
    assert "ranks 0-4,6-63 of 64 have not arrived after 60.0 s; 5 waits." in deadline_error.find(call, {}, set()).text


def test_a_row_is_read_as_it_was_published() -> None:
    made = row(2, 11, is_open=False, latest=LAST)
    assert rows.from_json(rows.to_json(made)) == made


@pytest.mark.parametrize("text", ["", "[]", "{}", "[1,2,3,4,5,6]", '[1,"a",1,0,{},{"7":{"0":[1]}}]'])
def test_an_invalid_row_is_an_error(text: str) -> None:
    with pytest.raises(JaxcommError, match="invalid row of arrivals"):
        rows.from_json(text)
