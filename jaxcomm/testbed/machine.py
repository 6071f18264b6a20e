"""Makes a testbed on this machine, and removes it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from typing import Final

from jaxcomm.errors import JaxcommError
from jaxcomm.testbed import hosts, packet_switch, state
from jaxcomm.testbed.layout import Layout
from jaxcomm.testbed.network import Command, build
from jaxcomm.testbed.requirements import check
from jaxcomm.testbed.schema import Testbed

_TIMEOUT_S: Final = 20


@contextlib.contextmanager
def up(testbed: Testbed) -> Iterator[Layout]:
    """Removes testbeds whose owners have ended, then runs the testbed within the block.

    Raises:
      JaxcommError: this machine cannot run the testbed and was not changed, or a command such as ip or tc failed.
    """
    check(testbed)
    state.clean()
    with state.owned() as id:
        layout = Layout(testbed, id)
        for command in build(layout):
            _run(command)
        with packet_switch.running(layout), hosts.running(layout):
            yield layout


def _run(command: Command) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    if done.returncode:
        raise JaxcommError(
            f"`{' '.join(command)}` failed: {done.stderr.strip()}.\n"
            "  Cure: see `jaxcomm testbed check`; nothing is left of the testbed."
        )
