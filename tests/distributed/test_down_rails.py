"""A rail that is down, or missing on one host, at the start: the others carry its part until it comes up."""

from __future__ import annotations

import re
import subprocess

import pytest

from jaxcomm.distributed.connect.interfaces import Interface
from jaxcomm.distributed.connect.settings import Settings
from jaxcomm.distributed.rails import rail_ends
from jaxcomm.distributed.rails.named_rails import NamedRail
from jaxcomm.distributed.rails.rail_ends import RailEnd
from jaxcomm.errors import JaxcommError
from tests.distributed.hosts import ended, two_hosts

HERE = [
    Interface("eth0", "10.0.0.1", "10.0.0.0/24", 0, "up", True),
    Interface("eth1", "10.1.0.1", "x", 0, "down", True),
]


def named(*names: str) -> Settings:
    return Settings(rails=tuple(map(NamedRail, names)))


def test_a_rail_that_is_down_or_missing_stays_among_others() -> None:
    assert rail_ends.own_rails(named("eth0", "eth1", "eth2"), "", HERE) == [
        RailEnd("eth0", "eth0", "10.0.0.1", 0, 0, ""),
        RailEnd("eth1", "eth1", "10.1.0.1", 0, 0, "", is_up=False),
        RailEnd("eth2", "eth2", "", 0, 0, "", is_up=False),
    ]


def test_a_rail_that_is_missing_everywhere_was_named_wrong() -> None:
    one = rail_ends.own_rails(named("eth0", "eth7"), "", HERE)
    with pytest.raises(
        JaxcommError, match=r"^the rail 'eth7' is no interface with an IP address on any host\.\n  Cure"
    ):
        rail_ends.check_missing([one, one])
    rail_ends.check_missing([one, [RailEnd("eth7", "eth7", "10.7.0.2", 0, 0, "")]])


JOB = """
import sys, time
import jax, jaxcomm, numpy as np
me, coordinator, until = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.distributed.initialize(coordinator, 2, me)
began = time.monotonic()
jaxcomm.init(deadline_s=60)
print("CONNECTED", time.monotonic() - began < 60, flush=True)
mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
place = jax.NamedSharding(mesh, jax.P("data"))
psum = jax.jit(jax.shard_map(lambda x: jaxcomm.psum(x, "data"), mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P()))
whole = np.arange(2 << 18, dtype=np.float32).reshape(2, -1) % 1001
x = jax.make_array_from_callback(whole.shape, place, lambda index: whole[index])
def right(x):
    return np.array_equal(psum(x).addressable_shards[0].data[0], whole.sum(0))
assert right(x)
assert all(rail["host"] == 1 - me for rail in jaxcomm.stats().rails)
def rails():
    return [(rail["rail"], rail["is_open"], rail["fences"]) for rail in jaxcomm.stats().rails]
print("RAILS", rails(), flush=True)
deadline = time.monotonic() + 60
while until == "up" and not all(is_open for _, is_open, _ in rails()) and time.monotonic() < deadline:
    time.sleep(0.1)
assert right(x)
print("RAILS", rails(), flush=True)
jax.distributed.shutdown()
"""


def until_rails(process: subprocess.Popen[str]) -> str:
    """The output of a process of the job up to its first line about the rails, or to its end."""
    assert process.stdout is not None
    text = ""
    while "RAILS" not in text and (line := process.stdout.readline()):
        text += line
    return text


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("transport", ["tcp", "udp"])
@pytest.mark.parametrize("host", [0, 1])
def test_a_rail_that_is_down_is_left_out_and_taken_in_when_it_comes_up(transport: str, host: int) -> None:
    with two_hosts({"eth0": 4, "eth1": 4}) as hosts:
        hosts.ip(host, "link", "set", "eth1", "down")
        environment = {"JAXCOMM_TRANSPORT": transport, "JAXCOMM_RAILS": "eth0,eth1"}
        processes = [hosts.start(each, JOB, str(each), "a:5555", "up", **environment) for each in (0, 1)]
        before = [until_rails(each) for each in processes]
        hosts.ip(host, "link", "set", "eth1", "up")
        found = ended(processes)
    outputs = [early + each.output for early, each in zip(before, found, strict=True)]
    assert [each.status for each in found] == [0, 0], "\n".join(outputs)
    for text in outputs:
        assert (
            len(re.findall(r"the rail eth1 is down on .*, and left out until it comes up: the other rails", text)) == 1
        )
        assert text.count("the rail eth1, to process") == 1, text  # that it is back
        first, last = re.findall(r"RAILS (.*)", text)
        assert first == "[('eth0', True, 0), ('eth1', False, 1)]" and last == "[('eth0', True, 0), ('eth1', True, 1)]"


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("transport", ["tcp", "udp"])
@pytest.mark.parametrize("host", [0, 1])
def test_a_rail_that_a_host_lacks_is_left_out_and_taken_in_when_it_appears(transport: str, host: int) -> None:
    with two_hosts({"eth0": 4, "eth1": 4}) as hosts:
        hosts.ip(host, "link", "set", "eth1", "name", "eth9")
        environment = {"JAXCOMM_TRANSPORT": transport, "JAXCOMM_RAILS": "eth0,eth1"}
        processes = [hosts.start(each, JOB, str(each), "a:5555", "up", **environment) for each in (0, 1)]
        before = [until_rails(each) for each in processes]
        hosts.ip(host, "link", "set", "eth9", "name", "eth1")
        found = ended(processes)
    outputs = [early + each.output for early, each in zip(before, found, strict=True)]
    assert [each.status for each in found] == [0, 0], "\n".join(outputs)
    for number, text in enumerate(outputs):
        without = f"missing, or without an address, on {'ab'[host]}, and left out until it has one"
        assert text.count(without) == 1, text
        assert text.count("now, and had none before") == (number == host), text
        assert text.count("the rail eth1, to process") == 1, text  # that it is back
        first, last = re.findall(r"RAILS (.*)", text)
        assert first == "[('eth0', True, 0), ('eth1', False, 1)]" and last == "[('eth0', True, 0), ('eth1', True, 1)]"


@pytest.mark.root
def test_rails_that_no_two_hosts_have_are_named() -> None:
    with two_hosts({"eth0": 4, "eth1": 4, "eth2": 4}) as hosts:
        hosts.ip(0, "link", "set", "eth1", "name", "eth8")
        hosts.ip(1, "link", "set", "eth2", "name", "eth9")
        found = hosts.run(JOB, "a:5555", "now", JAXCOMM_TRANSPORT="tcp", JAXCOMM_RAILS="eth1,eth2")
    assert [each.status for each in found] == [1, 1], "\n".join(each.output for each in found)
    assert all("no rail is common to both" in each.output for each in found), found


@pytest.mark.slow
@pytest.mark.root
def test_without_any_rail_it_is_an_error_within_the_timeout() -> None:
    with two_hosts({"eth0": 4, "eth1": 4, "eth2": 4}) as hosts:
        for rail in ("eth1", "eth2"):
            hosts.ip(1, "link", "set", rail, "down")
        environment = {"JAXCOMM_CONNECT_TIMEOUT_S": "8", "JAXCOMM_RAILS": "eth1,eth2", "JAXCOMM_TRANSPORT": "tcp"}
        found = hosts.run(JOB, "a:5555", "now", **environment)
    assert [each.status for each in found] == [1, 1] and "cannot be reached" in found[1].output, found
    assert re.search("process 1 (has not connected in time|could not be connected)", found[0].output), found
