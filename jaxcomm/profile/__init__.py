"""The profile file: its schema, reading and writing, and the values that are derived from it.

Needs pydantic and numpy, never JAX. Planning, measuring and reporting may import this package, and `collectives` may
import it for types. This package imports `ffi`, for the statistics of this process's run, and `files`.
"""

from __future__ import annotations

from jaxcomm.profile.changes import (
    at_rate,
    nic_at_rate,
    rail_at_rate,
    uplink_at_rate,
    with_executor,
    with_gradients,
    with_late_rank,
    with_layers,
    with_rail,
    with_trials,
    without_rail,
    without_straggler,
)
from jaxcomm.profile.drop_study import Excess, Trial, Trials
from jaxcomm.profile.files import load, save, validate
from jaxcomm.profile.fit import fit
from jaxcomm.profile.importers import read_any
from jaxcomm.profile.lateness import Straggler, find_straggler, late_ranks
from jaxcomm.profile.networks import on_hosts, with_network
from jaxcomm.profile.racks_and_rails import Channels, CoreRate, PacketLoss, Rack, Rail, Sample
from jaxcomm.profile.run_statistics import from_stats
from jaxcomm.profile.schema import Bucket, Collective, Link, Profile, Provenance, json_schema
from jaxcomm.profile.timed_schedules import ScheduleName, ScheduleSample, TimedSchedule, TimedSchedules, TriedSchedule
from jaxcomm.profile.tolerance import Impact, Layer, Switch, Tolerance

__all__ = [
    "Bucket",
    "Channels",
    "Collective",
    "CoreRate",
    "Excess",
    "Impact",
    "Layer",
    "Link",
    "PacketLoss",
    "Profile",
    "Provenance",
    "Rack",
    "Rail",
    "Sample",
    "ScheduleName",
    "ScheduleSample",
    "Straggler",
    "Switch",
    "TimedSchedule",
    "TimedSchedules",
    "Tolerance",
    "Trial",
    "Trials",
    "TriedSchedule",
    "at_rate",
    "find_straggler",
    "fit",
    "from_stats",
    "json_schema",
    "late_ranks",
    "load",
    "nic_at_rate",
    "on_hosts",
    "rail_at_rate",
    "read_any",
    "save",
    "uplink_at_rate",
    "validate",
    "with_executor",
    "with_gradients",
    "with_late_rank",
    "with_layers",
    "with_network",
    "with_rail",
    "with_trials",
    "without_rail",
    "without_straggler",
]
