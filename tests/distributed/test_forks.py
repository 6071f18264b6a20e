"""Children that a process forks hold none of its sockets."""

from __future__ import annotations

import os
import socket

import pytest

from jaxcomm.distributed.connect.addresses import bound_socket, listening_socket
from jaxcomm.distributed.connect.listener import Listener
from tests.distributed.test_listener import KEY, connected


def ours() -> set[str]:
    """The descriptors of this process which are sockets, and what waits for them."""
    found = set()
    for each in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{each}")
        except FileNotFoundError:  # of the listing itself
            continue
        if target.startswith(("socket:", "anon_inode:[event")):
            found.add(f"{each} {target}")
    return found


@pytest.mark.filterwarnings("ignore:os.fork")  # the child ends at once
def test_a_forked_child_holds_no_socket_of_its_parents() -> None:
    before = ours()
    with (
        listening_socket("127.0.0.1", "") as bound,
        bound_socket("127.0.0.1", "", socket.SOCK_DGRAM),
    ):
        listener = Listener(bound, KEY, process=0, processes=2, rail=0)
        with connected(listener):
            assert len(ours() - before) == 6  # with those of the listener's thread, and of the connection
            reads, writes = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(writes, "\n".join(sorted(ours() - before)).encode())
                os._exit(0)
            os.waitpid(child, 0)
            os.close(writes)
            with open(reads) as held:
                assert held.read() == ""
        listener.abandon()
