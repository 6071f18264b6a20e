"""A saved run that is damaged at one place is reported, or refused in one line that names the place."""

from __future__ import annotations

import copy
import datetime
import json
from collections.abc import Iterator
from typing import Any

import pytest

from jaxcomm.errors import ProfileError
from jaxcomm.profile import run_file, run_statistics
from jaxcomm.report.run import page as run_page
from jaxcomm.report.run import picture as run_picture
from jaxcomm.report.run import tensorboard
from jaxcomm.report.run import trace as run_trace
from jaxcomm.report.run import words as run_words
from tests.report.test_run_report import EVENTS, rail, saved, site

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
DELETED: Any = object()
VALUES = [DELETED, None, True, "x", "", -1, 0, 1, 1.5, float("nan"), float("inf"), 1e308, 10**30, [], {}, [[]], [None]]
Place = tuple[str | int, ...]


def whole() -> dict[str, Any]:
    """A run with one or two records of every kind."""
    changes = [{"at_s": 1.5, "is_open": False, "why": "a cut"}, {"at_s": 2.5, "is_open": True, "why": ""}]
    grouped = site(work_s=[[0.1, None, 0.2, 0.3]] * 2, arrivals=[[0.0, None, 0.1, 0.2]] * 2, end=1)
    selector = {"by_turns": False, "lateness_s": 0.01, "early": "ring", "late": "hybrid"}
    schedules = [{"min_bytes": 0, "schedule": "ring"}, {"min_bytes": 4096, "schedule": "hybrid", "selector": selector}]
    shares = {"threshold_bytes": 65536, "ranges": [{"min_bytes": 0, "shares": {"eth0": 1024}}]}
    plan = {"axes": ["data"], "plan": "3f9a01c2", "since_s": 1.0, "ranks": 4, "roles": {"late": 3}}
    rails = [rail(1, "eth0", 768, changes=changes), rail(1, "eth1", 256)]
    for each in rails:
        each["spans"] = each["spans"][:2]
    run = saved([site(end=2), grouped], rails, [plan | {"collectives": schedules, "rails": shares}], EVENTS)
    return run.model_dump(mode="json") | {"gone": [{"process": 1, "at_s": 2.0, "has_left": False, "why": "died"}]}


def places(node: Any, above: Place = ()) -> Iterator[Place]:
    for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield (*above, key)
        yield from places(node[key], (*above, key))


def damaged(run: dict[str, Any], place: Place, value: Any) -> bytes:
    run = copy.deepcopy(run)
    *above, last = place
    node: Any = run
    for key in above:
        node = node[key]
    if value is DELETED:
        del node[last]
    else:
        node[last] = value
    return json.dumps(run).encode()


def show(data: bytes) -> None:
    """Makes everything that `jaxcomm report` writes for a run."""
    run = run_file.decode(data, "run.json")
    words = [run_words.in_force(run, NOW), run_words.summary(run), run_picture.svg(run), run_trace.of_run(run)]
    assert all(words) and tensorboard.events(run, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["format", "version", "at_s", "written", "sites", "rails", "gone", "plans", "events"])
def test_damage_at_every_place_is_no_traceback(part: str) -> None:
    run = whole()
    show(json.dumps(run).encode())
    for place in [(part,), *places(run[part], (part,))]:
        for value in VALUES:
            data = damaged(run, place, value)
            for use in (show, lambda data: run_statistics.read(data, "run.json", NOW.isoformat())):
                try:
                    use(data)
                except ProfileError as error:
                    problem, cure, *more = str(error).splitlines()
                    assert problem.startswith("run.json: ") and cure.startswith("  Cure: ") and not more
                except Exception as error:
                    raise AssertionError(f"{place} = {value!r}") from error


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (
            ("sites", 0, "arrivals", 1),
            [0.0] * 3,
            "sites[0].arrivals[1] has 3 entries; it must have 4, one for each rank",
        ),
        (("sites", 1, "work_s", 0), [0.0] * 5, "sites[1].work_s[0] has 5 entries; it must have 4"),
        (("sites", 0, "spans", 1, "arrivals"), [0.0], "sites[0].spans[1].arrivals has 1 entries; it must have 4"),
        (("sites", 0, "after_arrival_s"), [], "sites[0].after_arrival_s has 0 entries; it must have 2"),
        (("rails", 1, "spans", 0, "length_s"), 0.0, "rails[1].spans[0].length_s is 0.0; it must be greater than 0"),
    ],
)
def test_unlike_lengths_are_refused_by_their_place(place: Place, value: Any, says: str) -> None:
    with pytest.raises(ProfileError) as error:
        run_file.decode(damaged(whole(), place, value), "run.json")
    assert str(error.value).startswith(f"run.json: {says}"), error.value


def test_rails_without_spans_have_a_picture() -> None:
    bare = rail(1, "eth0", 768, spans=[])
    assert "eth0" in run_picture.svg(saved([site()], [bare])) and "eth0" in run_page.html(saved([site()], [bare]))


def test_groups_without_known_arrivals_have_no_late_rank() -> None:
    run = saved([site(arrivals=[[0.0, None, 0.1, 0.2]] * 2)])
    assert "rank 3" not in run_words.summary(run)
