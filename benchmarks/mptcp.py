"""MPTCP below a library that knows of TCP only, in processes into which `mptcp.c` is preloaded."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
from collections.abc import Iterator

from jaxcomm.distributed.connect.interfaces import interfaces

PORT = 7900  # at which the kernel accepts what joins a connection; libraries listen at the first address only


def use_rails(names: list[str]) -> None:
    """Has MPTCP's connections of this network namespace use all these rails, of which the first is in their addresses.

    Others receive this host's address on each of the rest, and connect to it. Needs root.
    """
    addresses = {each.name: each.address for each in interfaces()}
    most = len(names) - 1
    commands = [f"limits set subflow {most} add_addr_accepted {most}"]
    commands += [f"endpoint add {addresses[name]} dev {name} port {PORT} signal" for name in names[1:]]
    for command in commands:
        subprocess.run(["ip", "mptcp", *command.split()], check=True)


@contextlib.contextmanager
def sockets() -> Iterator[None]:
    """Within the block, TCP sockets that this process opens are MPTCP's.

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
