"""Nezha's Table I: our split of it against what the paper measured, and by hand."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.benchmarks.paper_scripts import printed, script


@pytest.fixture(scope="module")
def nezha() -> ModuleType:
    return script("nezha")


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
    text, _ = printed(nezha, tmp_path, capsys)
    [equal] = [line.split() for line in text.splitlines() if line.startswith("TCP-TCP        4")]
    assert equal[2] == "84%" and float(equal[4]) == pytest.approx(1.0, abs=0.1)
