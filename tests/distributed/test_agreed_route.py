"""At which address a process is reached by other hosts, whatever its own host's name leads to."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jaxcomm import jax_compat
from jaxcomm.distributed.connect import agreed_route, interfaces, stages
from jaxcomm.distributed.connect.addresses import Route, local_address, routes
from jaxcomm.distributed.connect.settings import Settings
from jaxcomm.distributed.rails.named_rails import NamedRail
from jaxcomm.errors import JaxcommError
from tests.distributed.hosts import Hosts, address, two_hosts
from tests.distributed.stores import Store

LOOPBACK = [Route("127.0.0.1", "[127.0.1.1]:5", is_local=True)]
OWN_IPV6 = [Route("fd00::1", "[fd00::1]:5", is_local=True)]


def remote(*own: str) -> list[Route]:
    return [Route(each, "[fd00::1]:5" if ":" in each else "[10.0.0.1]:5", is_local=False) for each in own]


def agreed(monkeypatch: pytest.MonkeyPatch, known: list[list[Route] | Settings], *here: Route) -> list[str]:
    """The route of each process, or its error. `known`: its routes to the coordinator; `here`: all others."""
    store = Store()
    monkeypatch.setattr(jax_compat, "key_value_store", lambda: store)
    ends = {route.peer: [route] for route in here}

    def fake_routes(end: str) -> list[Route]:
        found = known[int(end.removeprefix("process"))] if end.startswith("process") else ends.get(end)
        if not isinstance(found, list):
            raise JaxcommError(f"no route to {end}")
        return found

    monkeypatch.setattr(agreed_route, "routes", fake_routes)

    def one(process: int) -> str:
        chosen = known[process]
        settings = chosen if isinstance(chosen, Settings) else Settings()
        others = [other for other in range(len(known)) if other != process]
        try:
            return agreed_route.agreed_route(process, others, settings, f"process{process}", time.monotonic() + 10)
        except JaxcommError as error:
            return str(error)

    with ThreadPoolExecutor(len(known)) as pool:
        return [*pool.map(one, range(len(known)))]


TO_B = Route("10.0.0.1", "[10.0.0.2]:1", is_local=False)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        pytest.param([LOOPBACK, LOOPBACK], ["process0", "process1"], id="one host"),
        pytest.param(
            [LOOPBACK, LOOPBACK, remote("10.0.0.2")],
            ["[10.0.0.2]:1", "[10.0.0.2]:1", "[10.0.0.1]:5"],
            id="its name leads to loopback",
        ),
        pytest.param(
            [OWN_IPV6, remote("10.0.0.2")], ["[10.0.0.2]:1", "[10.0.0.1]:5"], id="IPv6 at home, IPv4 elsewhere"
        ),
        pytest.param(
            [LOOPBACK, remote("fd00::2", "10.0.0.2"), remote("10.0.0.3")],
            ["[10.0.0.2]:1", "[10.0.0.1]:5", "[10.0.0.1]:5"],
            id="one family that all have",
        ),
        pytest.param(
            [Settings(rails=(NamedRail("eth0"),)), Settings(transport="shm")],
            ["process0", "process1"],
            id="nobody needs it",
        ),
    ],
)
def test_other_hosts_are_never_given_loopback(
    monkeypatch: pytest.MonkeyPatch, known: list[list[Route] | Settings], expected: list[str]
) -> None:
    assert agreed(monkeypatch, known, TO_B) == expected


def test_hosts_without_a_common_family_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in agreed(monkeypatch, [LOOPBACK, remote("fd00::2"), remote("10.0.0.3")], TO_B):
        assert text.startswith("the hosts reach the coordinator over IPv4 and IPv6, and have no address family in")
        assert "process 1 has fd00::2; process 2 has 10.0.0.3.\n  Cure: " in text


def test_a_host_that_no_address_leads_away_from_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = agreed(monkeypatch, [LOOPBACK, remote("10.0.0.9")])
    assert here.startswith("no address of this host leads to process 1 at 10.0.0.9; its route to the coordinator")
    assert here.endswith(
        "stays on the host.\n  Cure: JAXCOMM_INTERFACE=eth0, or the name of the interface between the hosts."
    )
    assert there == "[10.0.0.1]:5"


def test_what_is_published_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    monkeypatch.setattr(jax_compat, "key_value_store", lambda: store)
    for text in ("[7.5]", '["eth0"]', "{", "null"):
        store.values["jaxcomm/route/1"] = f"{stages.VERSION} {text}"
        store.values.pop("jaxcomm/route/0", None)
        with pytest.raises(JaxcommError, match=r"^process 1 published .* no list of addresses\.\n  Cure: "):
            agreed_route.agreed_route(0, [1], Settings(), "127.0.0.1:1", time.monotonic() + 1)


def test_a_name_has_routes_of_both_families() -> None:
    assert routes("127.0.1.1:9") == [Route("127.0.0.1", "[127.0.1.1]:9", is_local=True)]
    assert routes("[::1]:9") == [Route("::1", "[::1]:9", is_local=True)]


def test_an_interface_without_ipv4_has_its_ipv6_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "if_inet6"
    monkeypatch.setattr(interfaces, "_IPV6", file)
    file.write_text(
        "fe8000000000000000fc00fffe000001 02 40 20 80     ib9\n"
        "fd000000000000000000000000000003 02 40 00 01     ib9\n"  # temporary
        "fd000000000000000000000000000002 02 40 00 80     ib9\n"
        "fe8000000000000000fc00fffe000002 03 40 20 80     ib8\n"
    )
    assert interfaces.address_of("ib9") == ("fd00::2", "fd00::/64")
    assert interfaces.address_of("ib8") == ("fe80::fc:ff:fe00:2", "fe80::/64")
    assert interfaces.address_of("ib7") is None
    assert local_address("", "ib9") == "fd00::2"
    file.unlink()
    assert interfaces.address_of("ib9") is None


JOB = """
import sys
import jax, jaxcomm, numpy as np
from jaxcomm.distributed.connect import members
jax.distributed.initialize(sys.argv[2], 2, int(sys.argv[1]))
mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
place = jax.NamedSharding(mesh, jax.P("data"))
psum = jax.jit(jax.shard_map(lambda x: jaxcomm.psum(x, "data"), mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P()))
for rows in (1, 1 << 18):
    whole = np.arange(2 * rows, dtype=np.float32).reshape(2, rows) % 1001
    x = jax.make_array_from_callback(whole.shape, place, lambda index: whole[index])
    assert np.array_equal(psum(x).addressable_shards[0].data[0], whole.sum(0))
print([end.address for end in members.connected().ends], members.connected().transports)
jax.distributed.shutdown()
"""


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("transport", ["tcp", "udp"])
@pytest.mark.parametrize(
    ("version", "rails"),
    [(4, ""), (6, ""), (6, "eth0"), (6, "eth0,eth1")],
    ids=["IPv4", "IPv6", "an IPv6 rail", "two IPv6 rails"],
)
def test_hosts_connect_whatever_their_own_name_leads_to(transport: str, version: int, rails: str) -> None:
    with two_hosts({"eth0": version, "eth1": version}) as hosts:
        found = run_job(hosts, JAXCOMM_TRANSPORT=transport, JAXCOMM_RAILS=rails)
    for host, line in enumerate(found):
        for rail in range(max(1, len(rails.split(",")))):
            assert address(rail, version, host).partition("/")[0] in line
        assert transport in line


def run_job(hosts: Hosts, **environment: str) -> list[str]:
    found = hosts.run(JOB, "a:5555", JAXCOMM_CONNECT_TIMEOUT_S="60", **environment)
    assert [each.status for each in found] == [0, 0], "\n".join(each.output for each in found)
    return [each.output.splitlines()[-1] for each in found]
