"""Settings of connections in the environment, and the errors for invalid ones."""

from __future__ import annotations

from typing import Any

import pytest

from jaxcomm.distributed.connect.settings import Settings, from_environment, udp_paths
from jaxcomm.distributed.launch.job import is_job
from jaxcomm.distributed.rails.named_rails import NamedRail, named_rails
from jaxcomm.environment import udp_priorities
from jaxcomm.errors import JaxcommError


def test_nothing_need_be_set() -> None:
    assert from_environment({}) == Settings("auto", "", "", "", 300.0)
    assert from_environment({"JAXCOMM_TRANSPORT": "", "JAXCOMM_CONNECT_TIMEOUT_S": ""}) == Settings()


def test_all_is_read() -> None:
    environment = {
        "JAXCOMM_TRANSPORT": "tcp",
        "JAXCOMM_INTERFACE": "eth1",
        "JAXCOMM_HOST": "left",
        "JAXCOMM_SECRET_FILE": "/secret",
        "JAXCOMM_CONNECT_TIMEOUT_S": "2.5",
        "JAXCOMM_RAILS": "eth0:4, eth1:1",
        "JAXCOMM_ENCRYPT": "1",
    }
    rails = (NamedRail("eth0", 4), NamedRail("eth1", 1))
    assert from_environment(environment) == Settings("tcp", "eth1", "left", "/secret", 2.5, rails, encrypts=True)


@pytest.mark.parametrize(
    ("word", "rail"),
    [
        ("udp:eth1", NamedRail("eth1", 0, "udp")),
        ("tcp:eth1:400", NamedRail("eth1", 400, "tcp")),
        ("udp:400", NamedRail("udp", 400)),  # an interface with this name
        ("fabric:verbs", NamedRail("fabric:verbs", 0, "fabric")),
        ("fabric:verbs/mlx5_0:100000", NamedRail("fabric:verbs/mlx5_0", 100000, "fabric")),
        ("fabric:tcp;ofi_rxm/eth1", NamedRail("fabric:tcp;ofi_rxm/eth1", 0, "fabric")),
    ],
)
def test_a_rail_may_have_a_kind(word: str, rail: NamedRail) -> None:
    assert named_rails("rails", word) == (rail,)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "eth0,,eth1",
            "JAXCOMM_RAILS names the rail ''; a rail is [tcp:|udp:]INTERFACE[:MBIT] or ",
        ),
        ("eth0:0", "JAXCOMM_RAILS names the rail 'eth0:0'; a rail is"),
        ("eth0:fast", "JAXCOMM_RAILS names the rail 'eth0:fast'; a rail is"),
        ("eth0:\u0663", "JAXCOMM_RAILS names the rail 'eth0:\u0663'; a rail is"),  # a digit, though not ours
        ("eth0:" + 5000 * "9", "JAXCOMM_RAILS names the rail 'eth0:9"),  # more digits than Python takes
        (",", "JAXCOMM_RAILS names the rail ''; a rail is"),
        ("eth0,eth0", "JAXCOMM_RAILS names eth0, eth0; up to 16, each once."),
        ("eth0:4,eth1", "JAXCOMM_RAILS gives a rate to some rails; it belongs to all of them, or to none."),
    ],
)
def test_rails_that_cannot_be_meant_are_named(value: str, message: str) -> None:
    with pytest.raises(JaxcommError) as found:
        from_environment({"JAXCOMM_RAILS": value})
    assert str(found.value).startswith(message)
    assert str(found.value).endswith("\n  Cure: write for example eth0,eth1 or eth0:4000,eth1:1000.")


def test_a_number_of_processes_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "x")
    with pytest.raises(JaxcommError, match=r"^SLURM_NTASKS is 'x', not the number .*\n  Cure: "):
        is_job()


@pytest.mark.parametrize("value", [5, [5], b"eth0", [None], [], {"eth0": 4}, {"eth0", "eth1"}])
def test_rails_are_words(value: Any) -> None:
    with pytest.raises(JaxcommError, match=r"^rails is .*; it is a string, or a list with a string for each rail"):
        named_rails("rails", value)


def test_udp_rails_have_one_path_unless_more_are_set() -> None:
    assert [udp_paths({}), udp_paths({"JAXCOMM_UDP_PATHS": "64"})] == [1, 64]
    assert [udp_priorities({}), udp_priorities({"JAXCOMM_UDP_PRIORITIES": "8"})] == [1, 8]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TRANSPORT", "ucx"),
        *(("UDP_PATHS", value) for value in ("0", "65", "-1", "2.5", "many", "9" * 9)),
        *(("UDP_PRIORITIES", value) for value in ("0", "9", "high")),
        *(("CONNECT_TIMEOUT_S", value) for value in ("0", "-1", "nan", "inf", "soon", "1e9")),
    ],
)
def test_what_cannot_be_meant_is_named(name: str, value: str) -> None:
    with pytest.raises(JaxcommError, match=rf"^JAXCOMM_{name} is '{value}'.*\n  Cure: "):
        from_environment({f"JAXCOMM_{name}": value})
