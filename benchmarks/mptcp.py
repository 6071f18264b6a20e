"""Makes a library that only knows TCP use MPTCP, in processes with `mptcp.c` preloaded."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
from collections.abc import Iterator

from jaxcomm.distributed.connect.interfaces import interfaces

PORT = 7900  # where the kernel accepts further subflows; libraries listen on the first address only


def use_rails(names: list[str]) -> None:
    """Makes MPTCP connections of this network namespace use all these rails. Libraries connect by the first one.

    Peers receive this host's addresses on the other rails, and connect to them, too. Needs root.
    """
    addresses = {each.name: each.address for each in interfaces()}
    most = len(names) - 1
    commands = [f"limits set subflow {most} add_addr_accepted {most}"]
    commands += [f"endpoint add {addresses[name]} dev {name} port {PORT} signal" for name in names[1:]]
    for command in commands:
        subprocess.run(["ip", "mptcp", *command.split()], check=True)


@contextlib.contextmanager
def sockets() -> Iterator[None]:
    """Within the block, this process opens MPTCP sockets instead of TCP sockets.

    Raises:
      SystemExit: `mptcp.c` has not been preloaded.
    """
    try:
        switch = ctypes.c_int.in_dll(ctypes.CDLL(None), "mptcp")
    except ValueError as error:
        raise SystemExit(
            "MPTCP needs benchmarks/mptcp.c in this process.\n"
            "  Cure: cc -shared -fPIC -o build/mptcp.so benchmarks/mptcp.c, and set LD_PRELOAD=build/mptcp.so."
        ) from error
    switch.value = 1
    try:
        yield
    finally:
        switch.value = 0
