"""Profiles that contradict themselves: `jaxcomm plan` prints one line that names the value, and a cure."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from jaxcomm.cli import main

LINK = {"alpha_s": 3e-6, "beta_s_per_byte": 1e-10, "source": "made up"}
PROFILE = {
    "format": "jaxcomm-profile",
    "version": 1,
    "ranks": 4,
    "link": LINK,
    "buckets": [{"name": "all", "bytes": 4096, "ready_s": 0.01}],
    "provenance": {"source": "test", "tool": "hand"},
}


def rack(name: str, *ranks: int, uplink: float = 4.0) -> dict[str, Any]:
    return {"name": name, "ranks": ranks, "uplink": uplink}


def rail(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "transport": "tcp", "latency": [{"bytes": 1024, "seconds": 1e-4}], **fields}


def hosts(*of: int, nic: str = "rank", slow: float = 2.0) -> dict[str, Any]:
    return {"hosts": of, "nic": nic, "slow": slow}


RACKS = [rack("a", 0, 1), rack("b", 2, 3)]

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "rank in two racks": ({"racks": [rack("a", 0, 1), rack("b", 1, 2, 3)]}, "rank 1 is in racks[1] and in racks[0]"),
    "rank twice in a rack": ({"racks": [rack("a", 0, 1, 1), rack("b", 2, 3)]}, "rank 1 is in racks[0] twice"),
    "rank in no rack": ({"racks": [rack("a", 0, 1), rack("b", 3)]}, "rank 2 is in no rack"),
    "rack of a rank that is not": ({"racks": [rack("a", 0, 1), rack("b", 2, 3, 4)]}, "racks[1].ranks[2] is 4"),
    "rack without ranks": ({"racks": [rack("a", 0, 1, 2, 3), rack("b")]}, "racks[1].ranks has 0 entries"),
    "two racks of one name": (
        {"racks": [rack("a", 0, 1), rack("a", 2, 3)]},
        'racks[1].name is "a", which another rack has',
    ),
    "uplink faster than a rack": ({"racks": [rack("a", 0, 1, 2, 3, uplink=0.5)]}, "racks[0].uplink is 0.5"),
    "racks that cut a host": (
        {"racks": RACKS, "topology": hosts(0, 0, 0, 1)},
        "racks[1] cuts host 0 of topology.hosts in two: it has rank 2, but rank 0 is in racks[0]",
    ),
    "groups of unknown bytes": (
        {"racks": RACKS, "buckets": []},
        "groups are planned for the model's bytes, but the profile has neither buckets nor a collective",
    ),
    "NICs of other ranks": ({"nics": [1.0, 2.0]}, "nics has 2 entries for 4 ranks"),
    "NIC faster than the link": ({"nics": [1.0, 0.5, 1.0, 1.0]}, "nics[1] is 0.5"),
    "two rails of one name": ({"rails": [rail("eth0"), rail("eth0")]}, 'rails[1].name is "eth0", which another rail'),
    "rail that nobody shares": ({"rails": [rail("eth0", ranks=[0])]}, 'rails[0], "eth0", is shared by no two ranks'),
    "rail that misses a rank": ({"rails": [rail("eth0", ranks=[0, 1, 3])]}, '"eth0", does not reach rank 2'),
    "shares of more than all": (
        {"rail_shares": {"eth0": 0.5, "eth1": 0.6}},
        "rail_shares sum to 1.1; they must sum to 1",
    ),
    "rail without a measurement": ({"rails": [rail("eth0", latency=[])]}, "rails[0].latency has 0 entries"),
    "more rails than a plan can weigh": ({"rails": [rail(f"eth{i}") for i in range(17)]}, "rails has 17"),
    "impact of a share that nobody can measure": (
        {"tolerance": {"layers": [{"name": "all", "bytes": 4096, "small": [{"share": 1e-300, "rounds": 1.0}]}]}},
        "share is 1e-300; the least that can be measured is 1e-9",
    ),
    "latency below nothing": ({"link": {**LINK, "alpha_s": -1e-6}}, "link.alpha_s is -1e-06"),
    "bandwidth that is no number": ({"link": {**LINK, "beta_s_per_byte": math.nan}}, "link.beta_s_per_byte is nan"),
    "arrival that is no number": ({"arrivals": [[0.0, 0.0, math.nan, 1.0]]}, "arrivals[0][2] is nan"),
    "arrivals of other ranks": ({"arrivals": [[0.0] * 4, [0.0] * 3]}, "arrivals[1] has 3 times for 4 ranks"),
    "all ranks late": (
        {"arrivals": [[0.0] * 4, [0.1, 0.2, 0.1, 0.3]]},
        "arrivals[1] says that every rank is late: the first is at 0.1 s",
    ),
    "one rank": ({"ranks": 1}, "ranks is 1; it must be greater than or equal to 2"),
    "more ranks than a plan is for": ({"ranks": 8192}, "ranks is 8192; a plan is for at most 4096"),
    "hosts of other ranks": ({"topology": hosts(0, 0, 0)}, "topology.hosts has 3 entries for 4 ranks"),
    "host without ranks": (
        {"topology": hosts(0, 2, 0, 2)},
        "topology.hosts[1] is 2; hosts are numbered as they appear, so it is at most 1",
    ),
    "NIC per something else": ({"topology": hosts(0, 1, 0, 1, nic="rack")}, "topology.nic is 'rack'; it must be"),
    "links between hosts faster than within": ({"topology": hosts(0, 1, 0, 1, slow=0.5)}, "topology.slow is 0.5"),
    "slowness that is no number": ({"topology": hosts(0, 1, 0, 1, slow=math.nan)}, "topology.slow is nan; it must be"),
    "slowness unknown": ({"topology": {"hosts": [0, 1, 0, 1], "nic": "host"}}, "topology.slow is missing"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_contradiction_is_one_line_and_a_cure(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changes, message = CASES[name]
    Path("profile.json").write_text(json.dumps(PROFILE | changes))
    assert main(["plan", "profile.json"]) == 1
    captured = capsys.readouterr()
    first, cure = captured.err.splitlines()
    assert first.startswith("error: ") and message in first and cure.startswith("  Cure: ")
    assert captured.out == "" and not Path("plan.json").exists()


def test_without_a_contradiction_there_is_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    good = {"racks": RACKS, "topology": hosts(0, 0, 1, 1), "rails": [rail("eth0", ranks=[0, 1, 2, 3])]}
    Path("profile.json").write_text(json.dumps(PROFILE | good))
    assert main(["plan", "profile.json"]) == 0 and Path("plan.json").exists()
