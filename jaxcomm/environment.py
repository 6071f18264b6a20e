"""The environment variables that users may set: their names, two defaults, and functions that read some of them.

docs/reference/environment.md describes each variable.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Final

from jaxcomm.errors import JaxcommError

# Calls.
DEADLINE_S: Final = "JAXCOMM_DEADLINE_S"  # the default is in cc/base/default_deadline.h
TRIAL: Final = "JAXCOMM_TRIAL"
EXECUTOR: Final = "JAXCOMM_EXECUTOR"

# Dumps at failure.
DUMP: Final = "JAXCOMM_DUMP"

# Calls that the core does not run.
ARRIVALS: Final = "JAXCOMM_ARRIVALS"
EXIT_AT_DEADLINE: Final = "JAXCOMM_EXIT_AT_DEADLINE"

# Connections between processes.
TRANSPORT: Final = "JAXCOMM_TRANSPORT"
RAILS: Final = "JAXCOMM_RAILS"
UDP_PATHS: Final = "JAXCOMM_UDP_PATHS"
UDP_PRIORITIES: Final = "JAXCOMM_UDP_PRIORITIES"
INTERFACE: Final = "JAXCOMM_INTERFACE"
HOST: Final = "JAXCOMM_HOST"
SECRET_FILE: Final = "JAXCOMM_SECRET_FILE"
ENCRYPT: Final = "JAXCOMM_ENCRYPT"
CONNECT_TIMEOUT_S: Final = "JAXCOMM_CONNECT_TIMEOUT_S"
FABRIC_TESTS: Final = "JAXCOMM_FABRIC_TESTS"  # set by tests

# Unchanged programs.
EVERY_COLLECTIVE: Final = "JAXCOMM_EVERY_COLLECTIVE"
PLAN: Final = "JAXCOMM_PLAN"

# GPUs.
CERTIFICATE: Final = "JAXCOMM_CERTIFICATE"
GPU_SMALL: Final = "JAXCOMM_GPU_SMALL"  # set by `jaxcomm check`

# The process ID of `jaxcomm launch`, which sets this variable.
LAUNCHER: Final = "JAXCOMM_LAUNCHER"

# Set by `jaxcomm testbed run` for the processes of each host.
TESTBED: Final = "JAXCOMM_TESTBED"
TESTBED_DELAY_S: Final = "JAXCOMM_TESTBED_DELAY_S"

MOST_UDP_PRIORITIES: Final = 8  # the three highest bits of the DSCP select one of a switch's queues
DEFAULT_TRANSPORT: Final = "auto"
DEFAULT_CONNECT_TIMEOUT_S: Final = 300.0

_ON: Final = ("1", "true", "yes", "on")
_OFF: Final = ("0", "false", "no", "off", "")


def is_on(name: str, *, default: bool = False, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a variable is on.

    1, true, yes and on mean on. 0, false, no, off and an empty value mean off. The case does not matter.

    Args:
      name: the variable's name.
      default: the result if the variable is not set.
      environment: the variables that are set.

    Raises:
      JaxcommError: the variable has another value.
    """
    value = environment.get(name)
    if value is None:
        return default
    word = value.strip().lower()
    if word not in _ON + _OFF:
        raise JaxcommError(
            f"{name} is {value!r:.60}; it must be 1, true, yes or on, or 0, false, no or off.\n"
            "  Cure: set it to 1 or 0, or unset it."
        )
    return word in _ON


def number_of(things: str, name: str, most: int, cure: str, environment: Mapping[str, str] = os.environ) -> int:
    """The value of a variable that is a number of things, from 1 to `most`; 1 if it is not set.

    Raises:
      JaxcommError: the variable has another value; `cure` tells the user what to do.
    """
    text = environment.get(name) or "1"
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= most):
        raise JaxcommError(f"{name} is {text!r:.60}; it is a number of {things}, 1 to {most}.\n  Cure: {cure}.")
    return int(text)


def udp_priorities(environment: Mapping[str, str] = os.environ) -> int:
    """The number of priorities of UDP packets: JAXCOMM_UDP_PRIORITIES.

    Raises:
      JaxcommError: the variable's value is invalid.
    """
    cure = "set it to the number of queues in the plan's drop policy; otherwise unset it"
    return number_of("priorities", UDP_PRIORITIES, MOST_UDP_PRIORITIES, cure, environment)


def host_name() -> str:
    """The name of this host for display: JAXCOMM_HOST, or the system's host name if the variable is not set."""
    return os.environ.get(HOST) or socket.gethostname()
