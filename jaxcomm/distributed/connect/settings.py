"""Settings of the connections between processes, from environment variables and a plan."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

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
    is_on,
)
from jaxcomm.errors import JaxcommError

TRANSPORTS = ("auto", "shm", "tcp", "udp")
FABRIC: Final = "fabric"  # the kind of rails over libfabric
MOST_RAILS: Final = 16
_MOST_RATE: Final = 10**9
_RAIL: Final = re.compile(
    r"(?:(?P<fabric>fabric:(?![0-9]+$)[^:/\s]+(?:/[^:/\s]+)?)|(?:(?P<kind>tcp|udp):(?![0-9]+$))?(?P<name>[^:]+))"
    r"(?::(?P<rate>[0-9]{1,10}))?"
)


class NamedRail(NamedTuple):
    """A rail that the user has named.

    Attributes:
      name: an interface, an IPv4 address, or a fabric as in "fabric:verbs/mlx5_0".
      rate: the rate relative to other rails; 0 if not given.
      kind: "tcp", "udp" or "fabric"; "" for the kind of JAXCOMM_TRANSPORT or the plan.
    """

    name: str
    rate: int = 0
    kind: str = ""


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
      planned_transport: the plan's transport between hosts, "tcp" or "udp", or "".
      encrypts: JAXCOMM_ENCRYPT: whether messages between hosts are encrypted.
    """

    transport: str = DEFAULT_TRANSPORT
    interface: str = ""
    host: str = ""
    secret_file: str = ""
    timeout_s: float = DEFAULT_CONNECT_TIMEOUT_S
    rails: tuple[NamedRail, ...] = ()
    planned_transport: str = ""
    encrypts: bool = False

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
    )


def named_rails(source: str, words: str | Sequence[str]) -> tuple[NamedRail, ...]:
    """Parses rails, each written "eth0", "udp:eth0", "eth0:4000" or "fabric:verbs/mlx5_0:100000".

    "tcp:4000" is the interface tcp with a rate.

    Args:
      source: the setting's source, for errors.
      words: one word per rail, or one string with commas between them.

    Raises:
      JaxcommError: a word is invalid, there are no rails or too many, a rail is named twice, or only some rails have
        rates.
    """
    each_word = words.split(",") if isinstance(words, str) else words
    if not isinstance(each_word, Sequence) or not all(isinstance(word, str) for word in each_word) or not each_word:
        raise _wrong(f"{source} is {words!r}", "it is a string, or a list with a string for each rail")
    rails = []
    for word in each_word:
        match = _RAIL.fullmatch(word.strip())
        if match is None or not 0 < int(match["rate"] or 1) <= _MOST_RATE:
            raise _wrong(
                f"{source} names the rail {word!r}",
                "a rail is [tcp:|udp:]INTERFACE[:MBIT] or fabric:PROVIDER[/DOMAIN][:MBIT]",
            )
        kind = FABRIC if match["fabric"] else match["kind"] or ""
        rails.append(NamedRail(match["fabric"] or match["name"], int(match["rate"] or 0), kind))
    if len({rail.name for rail in rails}) < len(rails) or len(rails) > MOST_RAILS:
        raise _wrong(f"{source} names {', '.join(rail.name for rail in rails)}", f"up to {MOST_RAILS}, each once")
    if any(rail.rate for rail in rails) and not all(rail.rate for rail in rails):
        raise _wrong(f"{source} gives a rate to some rails", "it belongs to all of them, or to none")
    return tuple(rails)


def _wrong(found: str, wanted: str) -> JaxcommError:
    return JaxcommError(f"{found}; {wanted}.\n  Cure: write for example eth0,eth1 or eth0:4000,eth1:1000.")
