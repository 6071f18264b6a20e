"""StragglAR's Figure 6(b), redone: against closed forms and against what the paper says."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.benchmarks.paper_scripts import printed, script


@pytest.fixture(scope="module")
def straggler() -> ModuleType:
    return script("straggler")


def seconds(rounds: float, volume: float) -> float:
    return rounds * 3e-6 + volume * 2**30 / 450e9


# Table 1 and section 4.1 of the paper, by hand: rounds and volume of ring, halving and doubling, broadcast, StragglAR.
CLOSED = {
    8: [(14, 7 / 4), (6, 7 / 4), (3, 3), (9, 9 / 7)],
    256: [(510, 255 / 128), (16, 255 / 128), (8, 8), (262, 262 / 255)],
}


@pytest.mark.parametrize("ranks", CLOSED)
def test_at_powers_of_two_is_the_closed_form(straggler: ModuleType, ranks: int) -> None:
    row = straggler.row(ranks)
    expected = [seconds(*terms) for terms in CLOSED[ranks]]
    assert [*row.their_baselines, row.theirs] == pytest.approx(expected, rel=1e-12)
    assert [*row.our_baselines, row.ours] == pytest.approx(expected, rel=1e-12)
    assert row.their_rounds == row.our_rounds == CLOSED[ranks][3][0]


@pytest.mark.parametrize(("ranks", "log"), [(8, 3), (12, 4), (256, 8), (768, 10)])
def test_has_the_best_of_all_chunk_counts(straggler: ModuleType, ranks: int, log: int) -> None:
    row = straggler.row(ranks)
    least, chunks = min((seconds(k - 1 + log, (k - 1 + log) / k), k) for k in range(1, 2000))
    assert (row.best, row.best_chunks) == (pytest.approx(least, rel=1e-12), chunks)


@pytest.mark.parametrize(("ranks", "theirs", "ours"), [(6, 7, 7), (12, 15, 14), (48, 57, 52), (192, 208, 198)])
def test_at_midpoints_counts_rounds(straggler: ModuleType, ranks: int, theirs: int, ours: int) -> None:
    row = straggler.row(ranks)
    assert (row.their_rounds, row.our_rounds) == (theirs, ours)
    assert row.theirs == pytest.approx(seconds(theirs, theirs / (ranks - 1)))
    assert row.ours == pytest.approx(seconds(ours, ours / (ranks - 1)))


def test_shows_what_the_paper_says_of_it(straggler: ModuleType) -> None:
    """Section 4.3: faster than every baseline at every size shown, and nearly twice as fast as a ring at 256."""
    rows = [straggler.row(n) for n in (*straggler.POWERS, *straggler.MIDPOINTS) if n <= straggler.THEIR_LARGEST]
    assert len(rows) == 13
    for row in rows:
        assert row.best <= row.ours <= row.theirs < min(row.their_baselines)
    assert 1.9 < straggler.row(256).their_baselines.ring / straggler.row(256).theirs < 2


def test_goes_beyond_theirs(straggler: ModuleType) -> None:
    row = straggler.row(768)
    assert (row.their_rounds, row.theirs) == (None, None)
    assert row.our_rounds == 768 - 2 + 10


def test_the_script_prints_and_writes(
    straggler: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, _ = printed(straggler, tmp_path, capsys)
    assert all(f"\n{n:>5}  " in text for n in (*straggler.POWERS, *straggler.MIDPOINTS))
