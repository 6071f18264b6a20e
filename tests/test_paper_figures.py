"""The scripts that redo figures of papers: their numbers against closed forms and against what the papers say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[1] / "benchmarks" / "papers"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_figure", SCRIPTS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def straggler() -> ModuleType:
    return script("straggler")


@pytest.fixture(scope="module")
def groups() -> ModuleType:
    return script("groups")


def seconds(rounds: float, volume: float) -> float:
    return rounds * 3e-6 + volume * 2**30 / 450e9


# Table 1 and section 4.1 of the paper, by hand: rounds and volume of ring, halving and doubling, broadcast, StragglAR.
CLOSED = {
    8: [(14, 7 / 4), (6, 7 / 4), (3, 3), (9, 9 / 7)],
    256: [(510, 255 / 128), (16, 255 / 128), (8, 8), (262, 262 / 255)],
}


@pytest.mark.parametrize("ranks", CLOSED)
def test_straggler_figure_at_powers_of_two_is_the_closed_form(straggler: ModuleType, ranks: int) -> None:
    row = straggler.row(ranks)
    expected = [seconds(*terms) for terms in CLOSED[ranks]]
    assert [*row.their_baselines, row.theirs] == pytest.approx(expected, rel=1e-12)
    assert [*row.our_baselines, row.ours] == pytest.approx(expected, rel=1e-12)
    assert row.their_rounds == row.our_rounds == CLOSED[ranks][3][0]


@pytest.mark.parametrize(("ranks", "log"), [(8, 3), (12, 4), (256, 8), (768, 10)])
def test_straggler_figure_has_the_best_of_all_chunk_counts(straggler: ModuleType, ranks: int, log: int) -> None:
    row = straggler.row(ranks)
    least, chunks = min((seconds(k - 1 + log, (k - 1 + log) / k), k) for k in range(1, 2000))
    assert (row.best, row.best_chunks) == (pytest.approx(least, rel=1e-12), chunks)


@pytest.mark.parametrize(("ranks", "theirs", "ours"), [(6, 7, 7), (12, 15, 14), (48, 57, 52), (192, 208, 198)])
def test_straggler_figure_at_midpoints_counts_rounds(straggler: ModuleType, ranks: int, theirs: int, ours: int) -> None:
    row = straggler.row(ranks)
    assert (row.their_rounds, row.our_rounds) == (theirs, ours)
    assert row.theirs == pytest.approx(seconds(theirs, theirs / (ranks - 1)))
    assert row.ours == pytest.approx(seconds(ours, ours / (ranks - 1)))


def test_straggler_figure_shows_what_the_paper_says_of_it(straggler: ModuleType) -> None:
    """Section 4.3: faster than every baseline at every size shown, and nearly twice as fast as a ring at 256."""
    rows = [straggler.row(n) for n in (*straggler.POWERS, *straggler.MIDPOINTS) if n <= straggler.THEIR_LARGEST]
    assert len(rows) == 13
    for row in rows:
        assert row.best <= row.ours <= row.theirs < min(row.their_baselines)
    assert 1.9 < straggler.row(256).their_baselines.ring / straggler.row(256).theirs < 2


def test_straggler_figure_goes_beyond_theirs(straggler: ModuleType) -> None:
    row = straggler.row(768)
    assert (row.their_rounds, row.theirs) == (None, None)
    assert row.our_rounds == 768 - 2 + 10


def test_straggler_script_prints_and_writes(
    straggler: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    straggler.main(["--out", str(tmp_path / "new")])
    text = capsys.readouterr().out
    assert (tmp_path / "new" / "straggler.txt").read_text() == text
    assert (tmp_path / "new" / "straggler.png").read_bytes().startswith(b"\x89PNG")
    assert all(f"\n{n:>5}  " in text for n in (*straggler.POWERS, *straggler.MIDPOINTS))


@pytest.mark.parametrize("uplink", [1.0, 1.5, 2.0, 8.0])
def test_groups_table_is_the_closed_form(groups: ModuleType, uplink: float) -> None:
    """Table II at C = 2, G = 4, and rings in the paper's pattern: three in a rack, or two over the uplink."""
    alpha, byte = groups.ALPHA, groups.NBYTES * groups.BETA
    row = groups.row(uplink)
    assert row.theirs["ring"] == pytest.approx(14 * alpha + 14 / 8 * byte * uplink)
    assert row.theirs["hierarchical"] == pytest.approx(8 * alpha + 6 / 4 * byte + byte * uplink)
    assert row.theirs["gossip"] == pytest.approx(2 * alpha + 4 * byte * uplink)
    assert row.theirs["ds_sync"] == pytest.approx(2 * alpha + 2 * byte * uplink)
    assert row.pattern == pytest.approx(max(4 * alpha + 4 / 3 * byte, 2 * alpha + byte * uplink))
    assert row.ours == pytest.approx(2 * alpha + byte * uplink)
    assert row.ours <= row.pattern * (1 + 1e-8)
    assert row.rate < row.pattern_rate


def test_groups_script_prints_and_writes(
    groups: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups.main(["--out", str(tmp_path / "new")])
    text = capsys.readouterr().out
    assert (tmp_path / "new" / "groups.txt").read_text() == text
    assert (tmp_path / "new" / "groups.png").read_bytes().startswith(b"\x89PNG")
    assert "0.752" in text and "0.632" in text  # of their measurements: 200.1 / 266.1 and 331.7 / 525.1
