"""DS-Sync's Table II redone: against closed forms and against what the paper measured."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.benchmarks.paper_scripts import printed, script


@pytest.fixture(scope="module")
def groups() -> ModuleType:
    return script("groups")


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
    text, _ = printed(groups, tmp_path, capsys)
    assert "0.752" in text and "0.632" in text  # of their measurements: 200.1 / 266.1 and 331.7 / 525.1
