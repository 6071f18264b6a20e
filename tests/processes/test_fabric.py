"""Sums over rails of libfabric between two processes. Debian's libfabric has providers that need no hardware."""

from __future__ import annotations

from typing import Any

import pytest

from jaxcomm.distributed.rails import fabrics
from tests.processes import jobs

PROVIDERS = ("tcp;ofi_rxm", "udp;ofi_rxd", "shm")


def require(provider: str) -> None:
    if not any(each.provider == provider for each in fabrics.domains()):
        pytest.skip(f"this machine lacks libfabric's {provider}")


def run(rails: str, *words: str) -> list[jobs.Process]:
    variables = {"JAXCOMM_RAILS": rails, "JAXCOMM_FABRIC_TESTS": "1", "JAXCOMM_DEADLINE_S": "100"}
    return jobs.run("tests.processes.fabric", *words, processes=2, transport="auto", timeout_s=150, **variables)


def sums(rails: str) -> dict[str, Any]:
    """Returns what both processes reported."""
    found = run(rails)
    assert [each.status for each in found] == [0, 0], "\n".join(each.output for each in found)
    first, second = (each.reports["sums"] for each in found)
    assert first == second
    return first


@pytest.fixture(scope="module")
def over_tcp() -> list[str]:
    found = sums("127.0.0.1")
    assert found["kinds"] == ["tcp"]
    bits: list[str] = found["bits"]
    return bits


@pytest.mark.slow
@pytest.mark.parametrize("provider", PROVIDERS)
def test_sums_have_the_bits_of_tcp(provider: str, over_tcp: list[str]) -> None:
    require(provider)
    assert sums(f"fabric:{provider}" + "/lo" * (provider != "shm")) == {"bits": over_tcp, "kinds": ["fabric"]}


@pytest.mark.slow
def test_rails_of_three_kinds_carry_one_sum(over_tcp: list[str]) -> None:
    require("tcp;ofi_rxm")
    found = sums("127.0.0.1:500,udp:127.0.0.2:250,fabric:tcp;ofi_rxm/lo:250")
    assert found == {"bits": over_tcp, "kinds": ["tcp", "udp", "fabric"]}


def test_a_killed_process_is_named() -> None:
    require("tcp;ofi_rxm")
    first, second = run("fabric:tcp;ofi_rxm/lo", "kill")
    assert first.status == 0 and second.status == -9, first.output
    assert "process 1 is gone: connection " in first.reports["error"]["text"]
