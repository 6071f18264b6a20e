"""The names of the environment variables that users may set, and two of their defaults.

docs/reference/environment.md describes each of them.
"""

from __future__ import annotations

from typing import Final

# Calls.
DEADLINE_S: Final = "JAXCOMM_DEADLINE_S"  # its default is the core's: cc/base/default_deadline.h
TRIAL: Final = "JAXCOMM_TRIAL"
EXECUTOR: Final = "JAXCOMM_EXECUTOR"

# Connections between processes.
TRANSPORT: Final = "JAXCOMM_TRANSPORT"
RAILS: Final = "JAXCOMM_RAILS"
INTERFACE: Final = "JAXCOMM_INTERFACE"
HOST: Final = "JAXCOMM_HOST"
SECRET_FILE: Final = "JAXCOMM_SECRET_FILE"
CONNECT_TIMEOUT_S: Final = "JAXCOMM_CONNECT_TIMEOUT_S"

# Unchanged programs.
EVERY_COLLECTIVE: Final = "JAXCOMM_EVERY_COLLECTIVE"
PLAN: Final = "JAXCOMM_PLAN"

# GPUs.
CERTIFICATE: Final = "JAXCOMM_CERTIFICATE"

# Set by `jaxcomm testbed run` for the processes of a host.
TESTBED: Final = "JAXCOMM_TESTBED"
TESTBED_DELAY_S: Final = "JAXCOMM_TESTBED_DELAY_S"

DEFAULT_TRANSPORT: Final = "auto"
DEFAULT_CONNECT_TIMEOUT_S: Final = 300.0
