"""Starts a job on a testbed's hosts and returns at once, for benchmarks that use the testbed meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import IO

from jaxcomm import testbed
from jaxcomm.distributed.launch import commands as launch
from jaxcomm.testbed import Layout


def start(
    layout: Layout,
    words: Sequence[str],
    output: Callable[[int], IO[str] | int],
    *,
    errors: int | None = subprocess.STDOUT,
    further: Mapping[str, str] = MappingProxyType({}),
) -> list[subprocess.Popen[str]]:
    """Starts a Python process on each host, with these arguments. The output of process i goes to `output(i)`.

    All processes get the environment variables of `further`.
    """
    own = testbed.environments(layout)
    command = testbed.on_its_host([sys.executable, *words])
    job = {"devices": 1, "coordinator": testbed.coordinator(layout)}
    started = []
    for process, environment in enumerate(own):
        variables = launch.variables(process, len(own), **job, environment={"XLA_FLAGS": ""}, further=further)
        everything = launch.inherited(os.environ) | variables | environment
        started.append(subprocess.Popen(command, stdout=output(process), stderr=errors, env=everything, text=True))
    return started
