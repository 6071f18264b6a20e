"""Counters of a testbed's links: bytes carried and packets lost so far."""

from __future__ import annotations

import json
import subprocess
from typing import Any, Final, NamedTuple

from jaxcomm.errors import JaxcommError
from jaxcomm.testbed import packet_switch
from jaxcomm.testbed.layout import Layout
from jaxcomm.testbed.network import TABLE, within

_TIMEOUT_S: Final = 20


class LinkCounters(NamedTuple):
    """Counters of a host's link to a rail: lost packets, and the bytes (with headers) that the host sent and received.

    `queue_drops` counts packets that did not fit in a queue of the link. `random_losses` counts packets that were lost
    because of `packet_loss` in the testbed file.
    """

    host: str
    rail: str
    sent_bytes: int
    received_bytes: int
    queue_drops: int
    random_losses: int


def counters(layout: Layout) -> list[LinkCounters]:
    """Returns the counters of all hosts' links, in the file's order.

    Raises:
      JaxcommError: `tc` or `nft` failed.
    """
    if layout.testbed.switch is not None:
        return _with_a_switch(layout)
    switch, found = _queues(layout.switch), []
    losses = _losses(layout.switch) if layout.testbed.packet_loss else {}
    for host in layout.testbed.hosts:
        namespace = layout.namespace(host.name)
        queues = _queues(namespace)
        lossy = any(loss.host == host.name for loss in layout.testbed.packet_loss)
        losses_in = _losses(namespace) if lossy else {}
        for rail in layout.testbed.rails:
            port = layout.port(host.name, rail.name)
            ends = (queues[rail.name], switch[port])
            lost = losses_in.get(rail.name, 0) + losses.get(port, 0)
            sent, received = (end["bytes"] for end in ends)
            found.append(LinkCounters(host.name, rail.name, sent, received, sum(end["drops"] for end in ends), lost))
    return found


def _with_a_switch(layout: Layout) -> list[LinkCounters]:
    found = []
    for (host, rail), port in packet_switch.report(layout).items():
        namespace = layout.namespace(host)
        sent = _queues(namespace)[rail]
        (device,) = _json("ip", "-n", namespace, "-s", "-j", "link", "show", "dev", rail)
        received = sum(queue["bytes"] for queue in port["queues"])
        drops = sum(queue["ordinary_drops"] + queue["important_drops"] for queue in port["queues"])
        drops += sent["drops"] + device["stats64"]["tx"]["dropped"]
        found.append(LinkCounters(host, rail, sent["bytes"], received, drops, port["random_losses"]))
    return found


def _queues(namespace: str) -> dict[str, Any]:
    """Returns the root queue of each interface."""
    rows = _json("tc", "-n", namespace, "-s", "-j", "qdisc", "show")
    return {row["dev"]: row for row in rows if row.get("root")}


def _losses(namespace: str) -> dict[str, int]:
    """Returns the number of packets that each interface lost at random."""
    found = {}
    for entry in _json(*within(namespace, "nft", "-j", "list", "table", "netdev", TABLE))["nftables"]:
        for part in entry.get("rule", {}).get("expr", ()):
            if "counter" in part:
                found[entry["rule"]["chain"]] = part["counter"]["packets"]
    return found


def _json(*command: str) -> Any:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    if done.returncode:
        raise JaxcommError(f"`{' '.join(command)}` failed: {done.stderr.strip()}.\n  Cure: `jaxcomm testbed check`.")
    return json.loads(done.stdout)
