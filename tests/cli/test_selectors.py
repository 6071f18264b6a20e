"""A plan whose calls select one of two schedules, in commands that read plans."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxcomm import plan
from jaxcomm.cli import main
from tests.cli import documents
from tests.collectives.plans import SPECS, selecting


@pytest.fixture
def file(tmp_path: Path) -> Path:
    plan.save(selecting(SPECS["ring"], SPECS["hybrid"], 0.009), tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_verify_proves_all_three(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(file)]) == 0
    out = capsys.readouterr().out
    assert "3 of 3" in out


def test_explain_says_what_decides(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(file)]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "ring, or, after a call in which the late rank was 9 ms late or more, hybrid, 10 of 18 chunks" in words


def test_export_says_that_it_has_one_of_them(file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = ["export", str(file), "--to", "msccl-xml", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    assert "without the schedules that calls select from" in " ".join(capsys.readouterr().out.split())
    assert main([*command, "--json"]) == 0
    assert [row["without_selector"] for row in documents.document(capsys.readouterr().out)["files"]] == [True]
