"""`jaxcomm check --fabric` with the providers of Debian's libfabric, and `jaxcomm rails` with fabrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxcomm.cli import check_fabric, main
from jaxcomm.distributed.rails import fabrics
from jaxcomm.distributed.rails.fabrics import Fabric
from tests.cli import documents

RAIL = "fabric:tcp;ofi_rxm/lo"


@pytest.fixture
def one_fabric(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a fabric for tests the only one, as if it were a real one."""
    if not any(each.rail == RAIL for each in fabrics.domains()):
        pytest.skip("this machine lacks libfabric's tcp;ofi_rxm")
    monkeypatch.setenv("JAXCOMM_FABRIC_TESTS", "1")
    monkeypatch.setattr(check_fabric, "_names", lambda: (RAIL,))


@pytest.mark.slow
@pytest.mark.usefixtures("one_fabric")
def test_a_fabric_is_tried_and_the_report_has_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "fabric.json"
    assert main(["check", "--fabric", "--only", "kill", "--report", str(report)]) == 0
    assert f"{check_fabric.SECTIONS['kill']}\npassed" in capsys.readouterr().out
    found = documents.document(report.read_text())
    [head, row] = found["sections"]["kill"]["rows"]
    assert row[0] == RAIL and len(row) == len(head) and "process 1 is gone: connection " in row[2]
    assert RAIL in found["fabrics"]


def test_without_a_fabric_the_check_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_fabric, "_names", tuple)
    assert main(["check", "--fabric"]) == 1
    assert "libfabric " in capsys.readouterr().err


def test_rails_lists_the_fabrics_that_are_faster_than_tcp(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [Fabric("tcp;ofi_rxm", "lo", 0), Fabric("verbs;ofi_rxm", "mlx5_0", 100_000)]
    monkeypatch.setattr(fabrics, "domains", lambda: found)
    monkeypatch.delenv("JAXCOMM_FABRIC_TESTS", raising=False)
    assert main(["rails"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].split() == ["fabric:verbs;ofi_rxm/mlx5_0", "verbs;ofi_rxm", "mlx5_0", "100000"]
    assert not any("tcp;ofi_rxm" in line for line in lines)
