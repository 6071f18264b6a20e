"""The environment variables by which a user says how the processes of a job are connected."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import NamedTuple

from jaxcomm.errors import JaxcommError

TRANSPORTS = ("auto", "shm", "tcp")


class Settings(NamedTuple):
    """How this process is to be connected with the others.

    Attributes:
      transport: JAXCOMM_TRANSPORT: "shm", "tcp", or "auto", which is shm within a host and tcp between hosts.
      interface: JAXCOMM_INTERFACE: the network interface that sockets are bound to; "" for the way to the coordinator.
      host: JAXCOMM_HOST: processes with the same name share memory; "" finds out which can.
      secret_file: JAXCOMM_SECRET_FILE: holds the job's secret; "" for one that process 0 makes and publishes.
      timeout_s: JAXCOMM_CONNECT_TIMEOUT_S: for all processes to come and to connect; others may still be compiling.
    """

    transport: str = "auto"
    interface: str = ""
    host: str = ""
    secret_file: str = ""
    timeout_s: float = 300.0


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """What the environment says.

    Raises:
      JaxcommError: a variable's value cannot be meant.
    """
    transport = environment.get("JAXCOMM_TRANSPORT") or Settings().transport
    if transport not in TRANSPORTS:
        raise JaxcommError(
            f"JAXCOMM_TRANSPORT is {transport!r}; there are {', '.join(TRANSPORTS)}.\n  Cure: set it to one of them."
        )
    seconds = environment.get("JAXCOMM_CONNECT_TIMEOUT_S") or str(Settings().timeout_s)
    try:
        timeout_s = float(seconds)
    except ValueError:
        timeout_s = math.nan
    if not 0 < timeout_s <= 86400:
        raise JaxcommError(
            f"JAXCOMM_CONNECT_TIMEOUT_S is {seconds!r}; it is a number of seconds, up to a day.\n  Cure: set it to 300."
        )
    return Settings(
        transport,
        environment.get("JAXCOMM_INTERFACE", ""),
        environment.get("JAXCOMM_HOST", ""),
        environment.get("JAXCOMM_SECRET_FILE", ""),
        timeout_s,
    )
