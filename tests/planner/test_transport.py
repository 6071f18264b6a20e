"""TCP or UDP between hosts: chosen by the measured loss, explained by the plan, consistent with the plan's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jaxcomm import plan as plan_files
from jaxcomm import planner
from jaxcomm.errors import PlanError
from jaxcomm.plan import save
from jaxcomm.planner import transport
from jaxcomm.planner.transport import UDP_FROM
from jaxcomm.profile import Profile
from jaxcomm.report.plan.considered import considered
from jaxcomm.report.plan.explanation import explanation
from tests.plan.documents import load, sealed
from tests.planner.profiles import made, on_rails


def losing(rate: float | None, hosts: str = "abcd", profile: Profile | None = None) -> Profile:
    loss = None if rate is None else {"rate": rate}
    return Profile.model_validate({**(profile or made()).model_dump(), "hosts": [*hosts], "packet_loss": loss})


@pytest.mark.parametrize(
    ("rate", "transport"), [(0.0, "tcp"), (UDP_FROM * 0.99, "tcp"), (UDP_FROM, "udp"), (0.01, "udp"), (0.5, "udp")]
)
def test_it_is_udp_where_enough_packets_get_lost(rate: float, transport: str) -> None:
    chosen = planner.plan(losing(rate)).transport
    assert chosen and (chosen.protocol, chosen.loss_rate) == (transport, rate)


@pytest.mark.parametrize(
    "profile",
    [
        losing(None),
        losing(0.1, hosts="aaaa"),
        losing(0.1, profile=on_rails(made(), eth0=(1e-5, 1e-9), eth1=(1e-5, 1e-9))),
    ],
)
def test_nothing_is_decided_without_loss_or_hosts_nor_for_several_rails(profile: Profile) -> None:
    assert transport.decide(profile) is None


def test_a_profile_without_packet_loss_decides_nothing() -> None:
    assert planner.plan(made()).transport is None


def test_a_plan_says_why(tmp_path: Path) -> None:
    for rate, words in (
        (
            0.0123,
            "On CPUs between hosts over UDP: 1.23% of packets get lost on the worst path, which slow TCP down",
        ),
        (0.0, "On CPUs between hosts over TCP: 0% of packets get lost on the worst path; UDP would pay from"),
    ):
        plan = planner.plan(losing(rate))
        save(plan, tmp_path / "plan.json")
        assert plan_files.load(tmp_path / "plan.json") == plan
        assert words in explanation(plan) and "unless JAXCOMM_TRANSPORT is set." in " ".join(explanation(plan).split())
        assert considered(plan)["transport"] == {
            "protocol": "udp" if rate else "tcp",
            "loss_rate": rate,
            "udp_from": UDP_FROM,
        }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"protocol": "tcp"}, "protocol is tcp, but loss_rate is 0.01; UDP is for a loss of 0.003 or more"),
        ({"loss_rate": 0.0}, "protocol is udp, but loss_rate is 0; UDP is for a loss of 0.003 or more"),
        ({"udp_from": 0.0}, "transport.udp_from is 0.0; it must be"),
        ({"loss_rate": 0.7}, "transport.loss_rate is 0.7; it must be"),
    ],
)
def test_a_plan_against_its_own_figures_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    document = planner.plan(losing(0.01)).model_dump(mode="json", exclude={"hash"})
    document["transport"] |= changes
    with pytest.raises(PlanError) as caught:
        load(tmp_path / "plan.json", sealed(document))
    assert message in str(caught.value) and "Cure: " in str(caught.value)
