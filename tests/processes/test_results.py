"""Collectives between processes give what lax's give, without a plan and under one, and the same bits on all ranks."""

from __future__ import annotations

import pytest

from jaxcomm.plan import save
from jaxcomm.planner import plan
from tests.collectives.plans import SPECS, make, with_halves
from tests.planner.profiles import made
from tests.processes import jobs

PLANS = [
    with_halves(
        make((0, 65535, SPECS["halving_doubling"]), (65536, None, SPECS["ring"]), ranks=4),
        (0, 255, SPECS["halving_doubling"]),
        (256, 65535, SPECS["ring"]),
        (65536, None, {"kind": "hierarchical", "chunks": 4}),
        hosts=[0, 0, 1, 1],
    ),
    make((0, 4095, SPECS["broadcast"]), (4096, None, {**SPECS["straggler"], "chunks": 6}), ranks=4),
    plan(made(4, [0.01] * 20)),
]


@pytest.mark.parametrize(
    ("devices", "transport", "rails", "planned"),
    [
        pytest.param(1, "shm", "", True),
        pytest.param(1, "tcp", "", True, marks=pytest.mark.slow),
        pytest.param(2, "tcp", "127.0.0.1,127.0.0.2", False),
        pytest.param(1, "udp", "", False, marks=pytest.mark.slow),
    ],
)
def test_processes_agree_with_lax(
    devices: int, transport: str, rails: str, planned: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    files = [tmp_path_factory.mktemp("plans") / "plan.json" for _ in PLANS]
    for file, each in zip(files, PLANS, strict=True):
        save(each, file)
    found = jobs.run(
        "tests.processes.results",
        *map(str, files * planned),
        processes=4,
        devices=devices,
        transport=transport,
        JAXCOMM_RAILS=rails,
    )
    for process in found:
        assert process.status == 0, process.output
    cases = [name for name, report in found[0].reports.items() if "error" in report]
    assert len(cases) >= 40
    for name in cases:
        reports = [process.reports[name] for process in found]
        assert [report["error"] for report in reports] == [""] * 4, name
        for ours, laxs in zip(*([report[key] for report in reports] for key in ("ours", "lax")), strict=True):
            assert len(ours) == len(laxs)
        for leaf in range(len(reports[0]["lax"]) * ("scatter" not in name)):  # of which each rank has another chunk
            bits = {key: {digest for report in reports for digest in report[key][leaf]} for key in ("ours", "lax")}
            assert len(bits["ours"]) == 1 or len(bits["lax"]) > 1, f"{name}: ranks differ"
    for i, each in enumerate(PLANS * planned):
        followed = found[0].reports[f"plan {i}"]["plans"]
        for names, calls in zip([["psum"], ["psum_scatter", "all_gather"]], followed, strict=False):
            assert {f"{name}, {each.hash[:8]}" for name in names} <= {*calls}
        assert len(followed) == 1 + (each.halves is not None)
