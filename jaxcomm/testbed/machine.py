"""Makes a testbed on this machine, and removes it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from typing import Final

from jaxcomm import files
from jaxcomm.errors import JaxcommError
from jaxcomm.testbed import packet_switch, state
from jaxcomm.testbed.layout import Layout
from jaxcomm.testbed.network import Command, build
from jaxcomm.testbed.processes import hosts_text
from jaxcomm.testbed.requirements import check
from jaxcomm.testbed.schema import Testbed

_TIMEOUT_S: Final = 20


@contextlib.contextmanager
def up(testbed: Testbed) -> Iterator[Layout]:
    """The testbed, up within the block; before it, testbeds are removed whose owners have ended.

    Raises:
      JaxcommError: this machine cannot carry it (nothing has been touched), or a command of ip, tc or nft failed.
    """
    check(testbed)
    state.clean()
    with state.owned() as id:
        layout = Layout(testbed, id)
        files.write(state.hosts_file(id), hosts_text(layout))
        for command in build(layout):
            _run(command)
        with packet_switch.running(layout):
            yield layout


def _run(command: Command) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    if done.returncode:
        raise JaxcommError(
            f"`{' '.join(command)}` failed: {done.stderr.strip()}.\n"
            "  Cure: see `jaxcomm testbed check`; nothing is left of the testbed."
        )
