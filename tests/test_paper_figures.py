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
def nezha() -> ModuleType:
    return script("nezha")


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


def test_nezha_split_of_table_i_is_none_at_1_kib_and_beats_either_rail_at_8_and_64_mib(nezha: ModuleType) -> None:
    given = nezha.cluster(("TCP", "SHARP"), 4)
    found = nezha.decided(given)
    assert [(share.rail, share.share) for share in found.split_for(2**10)] == [("SHARP", 1.0)]
    for nbytes, sharp, tcp, theirs in ((8 * 2**20, 22140, 37137, 21265), (64 * 2**20, 181484, 316323, 178373)):
        shares = {share.rail: share.share for share in found.split_for(nbytes)}
        assert set(shares) == {"SHARP", "TCP"}
        # Rails of constant rates, by hand: shares as the rates, and both done together.
        rates = {"SHARP": nbytes / sharp / 1.156, "TCP": nbytes / tcp / 1.097}
        assert shares["TCP"] == pytest.approx(rates["TCP"] / sum(rates.values()), abs=0.02)
        assert found.range_for(nbytes).reason == "split"
        assert 0.7 * theirs < 1e6 * nezha.rails.seconds(given, found.split_for(nbytes), nbytes) < 0.8 * theirs


def test_nezha_model_predicts_their_fixed_splits_to_a_tenth(nezha: ModuleType) -> None:
    given = nezha.cluster(("TCP", "SHARP"), 4)
    for name, (tcp, times) in nezha.THEIRS.items():
        for nbytes, micros in zip(nezha.SIZES, times, strict=True):
            ratio = 1e6 * nezha.modelled(given, nbytes, tcp) / micros
            assert 0.9 < ratio < 1.11 if name != "slices" else 0.7 < ratio < 1, (name, nbytes, ratio)


def test_nezha_script_prints_and_writes(nezha: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nezha.main(["--out", str(tmp_path / "new")])
    text = capsys.readouterr().out
    assert (tmp_path / "new" / "nezha.txt").read_text() == text
    assert (tmp_path / "new" / "nezha.png").read_bytes().startswith(b"\x89PNG")
    [equal] = [line.split() for line in text.splitlines() if line.startswith("TCP-TCP        4")]
    assert equal[2] == "84%" and float(equal[4]) == pytest.approx(1.0, abs=0.1)
