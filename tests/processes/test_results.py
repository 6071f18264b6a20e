"""Collectives between processes give what lax's give, without a plan and under one, and the same bits on all ranks.

Over shared memory and over several rails they are compared with lax's; every transport gives the same bits.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxcomm.plan import save
from jaxcomm.planner import plan
from tests.collectives.plans import SPECS, make, with_halves
from tests.planner.profiles import made
from tests.processes import jobs
from tests.processes.jobs import Process

pytestmark = pytest.mark.slow

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


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    files = [tmp_path_factory.mktemp("plans") / "plan.json" for _ in PLANS]
    for file, each in zip(files, PLANS, strict=True):
        save(each, file)
    return files


def run(
    beside: str, plans: list[Path], transport: str, *, devices: int = 1, rails: str = "", priorities: int = 1
) -> list[Process]:
    found = jobs.run(
        "tests.processes.results",
        beside,
        *map(str, plans),
        processes=4,
        devices=devices,
        transport=transport,
        JAXCOMM_RAILS=rails,
        JAXCOMM_UDP_PRIORITIES=str(priorities),
    )
    for process in found:
        assert process.status == 0, process.output
    return found


@pytest.fixture(scope="module")
def by_shm(plans: list[Path]) -> list[Process]:
    return run("lax", plans, "shm")


def check_beside_lax(job: list[Process]) -> None:
    cases = [name for name, report in job[0].reports.items() if "lax" in report]
    assert len(cases) >= 40
    for name in cases:
        reports = [process.reports[name] for process in job]
        assert [report["error"] for report in reports] == [""] * 4, name
        for ours, laxs in zip(*([report[key] for report in reports] for key in ("ours", "lax")), strict=True):
            assert len(ours) == len(laxs)
        for leaf in range(len(reports[0]["lax"]) * ("scatter" not in name)):  # of which each rank has another chunk
            bits = {key: {digest for report in reports for digest in report[key][leaf]} for key in ("ours", "lax")}
            assert len(bits["ours"]) == 1 or len(bits["lax"]) > 1, f"{name}: ranks differ"


def check_that_plans_were_followed(job: list[Process]) -> None:
    for i, each in enumerate(PLANS):
        followed = job[0].reports[f"plan {i}"]["plans"]
        for names, calls in zip([["psum"], ["psum_scatter", "all_gather"]], followed, strict=False):
            assert {f"{name}, {each.hash[:8]}" for name in names} <= {*calls}
        assert len(followed) == 1 + (each.halves is not None)


def test_only_sums_of_arguments_that_are_kept_have_results_in_memory_of_their_own(by_shm: list[Process]) -> None:
    assert by_shm[0].reports["in place"] == {
        "argument": False,
        "donated argument": True,
        "computed value": True,
        "computed value among arguments": True,
    }


def test_they_agree_with_lax(by_shm: list[Process]) -> None:
    check_beside_lax(by_shm)
    check_that_plans_were_followed(by_shm)


def test_two_devices_per_process_over_two_rails_agree_with_lax() -> None:
    check_beside_lax(run("lax", [], "tcp", devices=2, rails="127.0.0.1,127.0.0.2"))


@pytest.mark.parametrize(
    ("transport", "planned", "priorities"), [("tcp", True, 1), ("udp", False, 1), ("udp", False, 3)]
)
def test_every_transport_gives_the_same_bits(
    transport: str, planned: bool, priorities: int, by_shm: list[Process], plans: list[Path]
) -> None:
    found = run("alone", plans * planned, transport, priorities=priorities)
    if planned:
        check_that_plans_were_followed(found)
    for process, expected in zip(found, by_shm, strict=True):
        assert len(process.reports) >= 40
        for name, report in process.reports.items():
            assert report.get("ours") == expected.reports[name].get("ours"), name
