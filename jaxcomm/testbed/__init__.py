"""Testbeds: hosts, racks and rails as namespaces of one machine, and their faults.

A TOML file describes rates, uplinks, a late host, random loss, cut and repaired links, and other traffic. Making a
testbed needs Linux and root. Reading a file and listing the commands needs neither. Only `jaxcomm.cli` imports this
folder. The folder imports files, errors, plan (for a switch's thresholds) and ffi (to run the switch).
"""

from jaxcomm.testbed.counters import LinkCounters, counters
from jaxcomm.testbed.events import Event, happening, timeline
from jaxcomm.testbed.files import examples, load
from jaxcomm.testbed.hosts import contents, first_process
from jaxcomm.testbed.layout import Layout
from jaxcomm.testbed.machine import up
from jaxcomm.testbed.network import build
from jaxcomm.testbed.packet_switch import (
    LinkState,
    QueueCounters,
    SpineCounters,
    SpineState,
    queue_counters,
    set_link,
    set_spine,
    spine_counters,
)
from jaxcomm.testbed.picture import picture
from jaxcomm.testbed.processes import coordinator, environments, on_its_host
from jaxcomm.testbed.requirements import Requirement, requirements
from jaxcomm.testbed.schema import Testbed
from jaxcomm.testbed.state import clean, in_use
from jaxcomm.testbed.switch_schema import TestbedSwitch

__all__ = [
    "Event",
    "Layout",
    "LinkCounters",
    "LinkState",
    "QueueCounters",
    "Requirement",
    "SpineCounters",
    "SpineState",
    "Testbed",
    "TestbedSwitch",
    "build",
    "clean",
    "contents",
    "coordinator",
    "counters",
    "environments",
    "examples",
    "first_process",
    "happening",
    "in_use",
    "load",
    "on_its_host",
    "picture",
    "queue_counters",
    "requirements",
    "set_link",
    "set_spine",
    "spine_counters",
    "timeline",
    "up",
]
