"""Several late ranks: what their schedules take, and when the planner chooses them."""

from __future__ import annotations

import documents
import numpy as np
import pytest
from documents import PLAN
from test_planner import made

from jaxcomm import plan, planner, profile, schedules, simulate
from jaxcomm.errors import PlanError
from jaxcomm.plan import files as plan_files
from jaxcomm.profile import Profile


@pytest.mark.parametrize(
    ("ranks", "late"), [(4, 2), (8, 1), (8, 2), (8, 3), (8, 7), (16, 2), (16, 9), (33, 32), (64, 2)]
)
def test_stragglers_tend_to_the_bound(ranks: int, late: int) -> None:
    degree = ranks - 1 + late
    rounds = [schedules.stragglers(ranks, range(late), times * ranks).num_rounds for times in (1, 2, 7, 100)]
    assert np.diff(rounds).tolist() == [degree, 5 * degree, 93 * degree]  # n more chunks take n − 1 + q more rounds
    assert rounds[0] <= 3 * degree


def test_the_stages_of_a_chain_do_without_those_who_are_not_there_yet() -> None:
    first, second, third = schedules.chain(8, [5, 1], 14).phases
    assert (first.away, second.away, third.away) == ({1, 5}, {1, 5}, {1})
    assert not np.isin(first.table()[:, 1:3], [1, 5]).any()
    assert not (second.table()[:, 1:3] == 1).any()
    assert (second.num_rounds, second.volume, third.num_rounds) == (6, 12, 14 - 1 + 3)


def two_late(ranks: int, first: float, last: float, known: int | None = None) -> Profile:
    rows = [[0.0] * (ranks - 2) + [first, last + 1e-4 * (step % 3)] for step in range(9)]
    return made(ranks, known=known).model_copy(update={"arrivals": rows})


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (two_late(8, 0.02, 0.0201), "stragglers"),
        (two_late(8, 0.5, 0.509), "straggler"),
        (two_late(8, 1.0, 2.0), "straggler"),
    ],
    ids=["together", "with a gap", "with a long gap"],
)
def test_two_late_ranks(source: Profile, expected: str) -> None:
    source = source.model_copy(update={"collective": profile.Collective(bytes=10**9, seconds=1.0)})
    result = planner.plan(source)
    assert result.roles == {"straggler": 7, "straggler_2": 6}
    (entry,) = (entry for entry in result.collectives if entry.min_bytes == entry.max_bytes == 10**9)
    assert entry.schedule.kind == expected
    assert {"stragglers", "chain"} <= {row.schedule.kind for row in entry.alternatives}
    plan.verify(result)
    for entry, schedule in zip(result.collectives, result.schedules, strict=True):
        nbytes, link = entry.predicted.reference_bytes, (source.link.alpha_s, source.link.beta_s_per_byte)
        times = [phase.seconds(nbytes, *link) for phase in schedule.phases]
        seconds = simulate.staggered(times, simulate.releases(schedule, source.arrivals))
        assert entry.predicted.seconds == pytest.approx(seconds, rel=1e-8)
        assert entry.predicted.lower_bound <= entry.predicted.seconds
    moved = plan_files.bind(result, {"straggler": 2, "straggler_2": 0})
    plan.verify(moved)


def test_more_ranks_than_a_plan_can_prove_have_one_late_rank() -> None:
    assert planner.plan(two_late(257, 0.02, 0.0201)).roles == {"straggler": 256}


@pytest.mark.parametrize(
    ("ranks", "kind", "chunks", "message"),
    [
        (257, "stragglers", 257, "late names 2 ranks; with 257 ranks, more than 256, only one can be late"),
        (256, "chain", 16385, "the chains of collectives have 4194560 ranks · chunks; 4194304 can be proved"),
    ],
)
def test_schedules_too_large_to_prove_are_refused(ranks: int, kind: str, chunks: int, message: str) -> None:
    spec = {"kind": kind, "late": ["straggler", "second"], "chunks": chunks}
    document = PLAN | {
        "matches": PLAN["matches"] | {"ranks": ranks},
        "roles": {"straggler": 3, "second": 4},
        "template": schedules.template(ranks).to_json(),
        "collectives": [documents.entry(0, None, spec)],
        "step": None,
    }
    with pytest.raises(PlanError, match=message):
        plan_files.validate(document, "plan")


def test_two_late_roles_are_two_ranks() -> None:
    result = planner.plan(two_late(8, 0.02, 0.0201))
    with pytest.raises(PlanError, match="which roles binds to 2, 2; every one must be another rank"):
        plan_files.bind(result, {"straggler": 2, "straggler_2": 2})
