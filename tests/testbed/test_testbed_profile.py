"""`jaxcomm profile` in a testbed finds the testbed's hosts and racks. Needs root."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from jaxcomm import profile
from jaxcomm.cli import main

pytestmark = [pytest.mark.root, pytest.mark.slow]

RACKS = Path(__file__).parents[2] / "jaxcomm" / "testbed" / "examples" / "racks.toml"


def test_racks_and_hosts_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    out = str(tmp_path / "profile.json")
    words = [
        "profile",
        "--sizes",
        "1KiB,256KiB,4MiB",
        "--seconds",
        "8",
        "--steps",
        "5",
        "--out",
        out,
    ]
    command = [sys.executable, "-m", "jaxcomm.cli", *words]
    assert main(["testbed", "run", str(RACKS), "--time-limit", "120", "--", *command]) == 0
    found = profile.load(out)
    assert found.hosts == ["a", "b", "c", "d"]
    assert [rack.ranks for rack in found.racks] == [[0, 1], [2, 3]]
    assert all(rack.uplink > 1.5 for rack in found.racks)


def test_a_link_that_loses_packets_is_found_and_the_plan_says_udp(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    hosts = "".join(f'[[hosts]]\nname = "{host}"\n' for host in "abc")
    file, found, made = (tmp_path / name for name in ("loss.toml", "profile.json", "plan.json"))
    file.write_text(f'[[rails]]\nname = "eth0"\nmbit = 200\n{hosts}[[packet_loss]]\nhost = "b"\nrate = 0.05\n')
    words = [
        "profile",
        "--sizes",
        "1KiB,64KiB",
        "--seconds",
        "4",
        "--steps",
        "5",
        "--out",
        str(found),
    ]
    command = [sys.executable, "-m", "jaxcomm.cli", *words]
    assert main(["testbed", "run", str(file), "--time-limit", "120", "--", *command]) == 0
    loss = profile.load(found).packet_loss
    assert loss and 0.02 < loss.rate < 0.1
    assert main(["plan", str(found), "--time-limit", "1", "--out", str(made)]) == 0
    assert "between hosts over UDP: " in capfd.readouterr().out
