"""Settings of the connections between processes, from environment variables and a plan."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Final, NamedTuple

from jaxcomm.distributed.rails.named_rails import NamedRail, named_rails
from jaxcomm.environment import (
    CONNECT_TIMEOUT_S,
    DEFAULT_CONNECT_TIMEOUT_S,
    DEFAULT_TRANSPORT,
    ENCRYPT,
    HOST,
    INTERFACE,
    RAILS,
    SECRET_FILE,
    TRANSPORT,
    UDP_PATHS,
    is_on,
    number_of,
    udp_priorities,
)
from jaxcomm.errors import JaxcommError

TRANSPORTS = ("auto", "shm", "tcp", "udp")
MOST_UDP_PATHS: Final = 64


class Settings(NamedTuple):
    """The settings of this process's connections with the other processes.

    Attributes:
      transport: JAXCOMM_TRANSPORT: "shm", "tcp", "udp" or "auto". With "auto" processes use shm within a host. Between
        hosts they use the plan's transport, or tcp if no plan has a transport.
      interface: JAXCOMM_INTERFACE: the interface to which sockets are bound; "" for the route to the coordinator.
      host: JAXCOMM_HOST: processes with the same value share memory; "" detects which processes can share memory.
      secret_file: JAXCOMM_SECRET_FILE: the file with the job's secret; "" lets process 0 create and publish a secret.
      timeout_s: JAXCOMM_CONNECT_TIMEOUT_S: the seconds in which all processes must arrive and be connected. The default
        is long, because a process may compile before it arrives.
      rails: JAXCOMM_RAILS: interfaces and fabrics, as in "eth0,udp:eth1,fabric:verbs", or with Mbit/s
        "eth0:4000,eth1:1000"; () detects the rails.
      planned_transport: the plan's transport between hosts: "tcp", "udp", or "" if no plan has a transport.
      encrypts: JAXCOMM_ENCRYPT: whether messages between hosts are encrypted.
      udp_priorities: JAXCOMM_UDP_PRIORITIES: the number of priorities of UDP packets.
    """

    transport: str = DEFAULT_TRANSPORT
    interface: str = ""
    host: str = ""
    secret_file: str = ""
    timeout_s: float = DEFAULT_CONNECT_TIMEOUT_S
    rails: tuple[NamedRail, ...] = ()
    planned_transport: str = ""
    encrypts: bool = False
    udp_priorities: int = 1

    @property
    def follows_plan(self) -> bool:
        """Whether the plan chooses the transport, because the user named no transport."""
        return self.transport == "auto"


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """Returns the settings in the environment.

    Raises:
      JaxcommError: a variable's value is invalid.
    """
    transport = environment.get(TRANSPORT) or Settings().transport
    if transport not in TRANSPORTS:
        raise JaxcommError(
            f"{TRANSPORT} is {transport!r}; there are {', '.join(TRANSPORTS)}.\n  Cure: set it to one of them."
        )
    udp_paths(environment)  # finds an invalid value before processes connect
    seconds = environment.get(CONNECT_TIMEOUT_S) or str(Settings().timeout_s)
    try:
        timeout_s = float(seconds)
    except ValueError:
        timeout_s = math.nan
    if not 0 < timeout_s <= 86400:
        raise JaxcommError(
            f"{CONNECT_TIMEOUT_S} is {seconds!r}; it is a number of seconds, up to a day.\n  Cure: set it to 300."
        )
    return Settings(
        transport,
        environment.get(INTERFACE, ""),
        environment.get(HOST, ""),
        environment.get(SECRET_FILE, ""),
        timeout_s,
        named_rails(RAILS, rails) if (rails := environment.get(RAILS)) else (),
        encrypts=is_on(ENCRYPT, environment=environment),
        udp_priorities=udp_priorities(environment),
    )


def udp_paths(environment: Mapping[str, str] = os.environ) -> int:
    """Returns JAXCOMM_UDP_PATHS: the number of paths to each process over each UDP rail; 1 by default.

    Raises:
      JaxcommError: the variable's value is invalid.
    """
    cure = "set it to 16 where switches spread packets over several links by their ports; otherwise unset it"
    return number_of("paths", UDP_PATHS, MOST_UDP_PATHS, cure, environment)
