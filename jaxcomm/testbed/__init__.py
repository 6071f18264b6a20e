"""Testbeds: hosts, racks and rails as network namespaces of one machine, and what goes wrong between them.

A TOML file says it all: rates, uplinks, a late host, random loss, links that are cut and repaired, other traffic.
Linux and root are needed to make one; to read a file and to say what would be done, neither. Only `jaxcomm.cli`
imports this folder; it imports files, errors, plans, whose thresholds a switch may have, and ffi, which runs it.
"""

from jaxcomm.testbed.counters import LinkCounters, counters
from jaxcomm.testbed.events import Event, happening, timeline
from jaxcomm.testbed.files import examples, load
from jaxcomm.testbed.layout import Layout
from jaxcomm.testbed.machine import up
from jaxcomm.testbed.network import build
from jaxcomm.testbed.packet_switch import LinkState, QueueCounters, queue_counters, set_link
from jaxcomm.testbed.picture import picture
from jaxcomm.testbed.processes import coordinator, environments, hosts_text, on_its_host
from jaxcomm.testbed.requirements import Requirement, requirements
from jaxcomm.testbed.schema import Testbed
from jaxcomm.testbed.state import clean, hosts_file, in_use
from jaxcomm.testbed.switch_schema import TestbedSwitch

__all__ = [
    "Event",
    "Layout",
    "LinkCounters",
    "LinkState",
    "QueueCounters",
    "Requirement",
    "Testbed",
    "TestbedSwitch",
    "build",
    "clean",
    "coordinator",
    "counters",
    "environments",
    "examples",
    "happening",
    "hosts_file",
    "hosts_text",
    "in_use",
    "load",
    "on_its_host",
    "picture",
    "queue_counters",
    "requirements",
    "set_link",
    "timeline",
    "up",
]
