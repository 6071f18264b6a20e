"""Plan files are data: for any file, loading and the first call do a bounded amount of work, or refuse the file."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxcomm import plan, schedules
from jaxcomm.errors import PlanError
from jaxcomm.plan import files, proof
from jaxcomm.plan.limits import LEAST_CHAINED, MAX_CHAINED, MAX_SOLVED
from jaxcomm.program import contributions, lowering, races, verifier
from jaxcomm.program.program import MAX_PIECES, compile
from jaxcomm.program.verifier import verify_program
from jaxcomm.schedules.one_late_rank import straggler_table
from tests.plan import documents

ROLES = {f"late_{rank}": rank for rank in range(16)}


def document(ranks: int, specs: Sequence[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """A plan file's document with an entry for each of the specs."""
    last = len(specs) - 1
    entries = [documents.entry(1000 * i, None if i == last else 1000 * i + 999, spec) for i, spec in enumerate(specs)]
    changed = {
        "matches": {**documents.PLAN["matches"], "ranks": ranks},
        "roles": {name: rank for name, rank in ROLES.items() if rank < ranks},
        "template": schedules.template(ranks).to_json(),
        "collectives": entries,
        "step": None,
    }
    return {**documents.PLAN, **changed, **fields}


def straggler(chunks: int) -> dict[str, Any]:
    return {"kind": "straggler", "late": "late_3", "chunks": chunks}


def chain(late: Sequence[str], chunks: int) -> dict[str, Any]:
    return {"kind": "chain", "late": list(late), "chunks": chunks}


def solved(chunks: int, moves: int) -> dict[str, Any]:
    """A network whose only schedule has these numbers of chunks and moves."""
    figures = {"nbytes": 1, "delay_s": 0.0, "seconds": 1.0, "start_s": 1.0, "bound_s": 1.0}
    schedule = {"late": 3, "chunks": chunks, "before": [], "after": [0, 3, 0, 0, 0] * moves, **figures}
    return {"topology": {"hosts": [0] * 6, "nic": "host", "slow": 4.0}, "schedules": [schedule]}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the called functions that do the work, one per call."""
    made: list[str] = []

    def counted(place: Any, name: str) -> None:
        original = getattr(place, name)
        monkeypatch.setattr(place, name, lambda *args: (made.append(name), original(*args))[1])

    counted(proof, "verify_template")
    counted(verifier, "_execute")
    counted(lowering, "_chunk_drafts")
    counted(races.ChunkRun, "check_complete")
    return made


@pytest.mark.parametrize("ranks", [6, 8, 15, 31])
def test_more_chunks_turn_what_the_template_is_proved_by(ranks: int) -> None:
    template = schedules.template(ranks)
    others, ages = ranks - 1, len(template.colours)
    least = template.least(10**6)
    assert least == ages + 1

    def last_rounds(chunks: int) -> Any:
        first = chunks - ages
        table = straggler_table(ranks, others, chunks, template, first)
        late = table[:, 1:3] == others
        table[:, 1:3] = np.where(late, others, (table[:, 1:3] - first) % others)
        table[:, 3] -= first
        table[:, 0] = np.where(table[:, 0] < first, -1, table[:, 0] - first)  # one transfer may be in round 0
        return sorted(map(tuple, table.tolist()))

    for chunks in (least + 1, least + 2, least + others, 1000):
        assert last_rounds(chunks) == last_rounds(least)


def test_a_template_is_proved_once_for_all_greater_numbers_of_chunks(tmp_path: Path, calls: list[str]) -> None:
    specs = [straggler(chunks) for chunks in range(1, 2049)]
    documents.load(tmp_path / "plan.json", documents.sealed(document(1024, specs)))
    assert 2 <= len(calls) <= len(schedules.template(1024).colours)  # one chunk needs no template


def test_a_chain_is_executed_once_for_all_greater_numbers_of_chunks(tmp_path: Path, calls: list[str]) -> None:
    specs = [chain(["late_1", "late_5"], chunks) for chunks in range(7, 4000)]
    documents.load(tmp_path / "plan.json", documents.sealed(document(8, specs)))
    assert calls.count("_execute") == 1
    assert plan.verify(schedules.chain(8, [1, 5], 4000)).chunks == 4000


def test_more_chains_than_can_be_proved_are_refused() -> None:
    orders = itertools.permutations(ROLES, 3)
    most = MAX_CHAINED // LEAST_CHAINED
    specs = [chain(order, 8) for order in itertools.islice(orders, most + 1)]
    files.validate(document(17, specs[:most]), "plan")
    with pytest.raises(PlanError, match=f"collectives have {most + 1} different chains, which count as .* can be prov"):
        files.validate(document(17, specs), "plan")


def test_solved_schedules_that_are_too_large_to_prove_are_refused() -> None:
    spec = {"kind": "transfers", "late": "late_3", "chunks": 1, "index": 0}
    files.validate(document(6, [spec], network=solved(1, MAX_SOLVED // 5 - 2)), "plan")
    with pytest.raises(PlanError, match=f"network.schedules have .* of moves; {MAX_SOLVED} can be proved"):
        files.validate(document(6, [spec], network=solved(1, MAX_SOLVED // 5)), "plan")


@pytest.mark.parametrize(("ranks", "most"), [(64, 65536), (128, 32768), (1024, 4096), (4096, 8192)])
def test_more_chunks_than_a_program_may_have_are_refused(ranks: int, most: int) -> None:
    """For many ranks, the planner uses at most twice as many chunks as ranks."""
    files.validate(document(ranks, [straggler(most)]), "plan")
    if most < 65536:
        with pytest.raises(PlanError, match=rf"collectives\[0\].schedule.chunks is {most + 1}; with {ranks} "):
            files.validate(document(ranks, [straggler(most + 1)]), "plan")


def test_a_program_of_too_many_pieces_is_refused_before_anything_is_unrolled() -> None:
    with pytest.raises(PlanError, match=rf"(?s)ring: 4096 ranks and 4096 chunks are 16777216 .* {MAX_PIECES}\..*Cure"):
        compile(schedules.ring(4096))


@pytest.mark.parametrize(
    "schedule",
    [schedules.straggler(8, 3, 65536), schedules.hybrid(8, 3, 65536, 40000), schedules.chain(8, [1, 5], 65536)],
    ids=lambda schedule: schedule.kind,
)
def test_few_of_many_chunks_are_lowered_and_proved(schedule: schedules.Schedule, calls: list[str]) -> None:
    program = compile(schedule)
    assert calls.count("_chunk_drafts") <= 40
    verify_program(program, schedule)
    assert calls.count("check_complete") <= 40


def test_one_of_many_mistakes_ends_a_list() -> None:
    wrong = documents.replaced(documents.PLAN, "network", to=solved(1, 0))
    wrong["network"]["schedules"][0]["after"] = [-1] * 200_000
    with pytest.raises(PlanError, match=r"network\.schedules\[0\]\.after\[0\] is -1; it must be .* 0\.\n"):
        files.validate(wrong, "plan")


late = st.lists(st.sampled_from(sorted(ROLES)), min_size=2, max_size=5, unique=True)
chunk_counts = st.integers(1, 65536)
specs = st.one_of(
    st.builds(straggler, chunk_counts),
    st.builds(chain, late, chunk_counts),
    st.builds(lambda late, chunks: {**chain(late, chunks), "kind": "stragglers"}, late, chunk_counts),
    st.builds(lambda covered, blocks: (covered, blocks), chunk_counts, st.integers(1, 100)),
    st.sampled_from([{"kind": "ring"}, {"kind": "direct"}, {"kind": "broadcast", "late": "late_3"}]),
)


@given(ranks=st.sampled_from([4, 6, 17, 64, 256, 1024]), drawn=st.lists(specs, min_size=1, max_size=12))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_loads_was_proved_with_bounded_work(ranks: int, drawn: list[Any], monkeypatch: Any) -> None:
    found = [
        spec
        if isinstance(spec, dict)
        else {**straggler(spec[0] + spec[1] * ranks), "kind": "hybrid", "covered": spec[0]}
        for spec in drawn
    ]
    moved: list[int] = []
    run = contributions.Contributions.run
    with monkeypatch.context() as patched:
        patched.setattr(
            contributions.Contributions, "run", lambda self, table: (moved.append(len(table)), run(self, table))[1]
        )
        try:
            loaded = files.validate(document(ranks, found), "plan")
        except PlanError as error:
            assert "Cure: " in str(error)
            return
        proof.verify_embedded(loaded)
    assert sum(moved) <= 4 * MAX_CHAINED
