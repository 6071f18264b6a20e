"""Sends over a TCP connection with and without the kernel's copy, by turns: rate, processor time, copied sends.

    python benchmarks/zero_copy.py                                     # over the loopback interface
    python benchmarks/zero_copy.py --serve 5000                        # on one host
    python benchmarks/zero_copy.py --connect 10.0.0.1:5000             # on the other: the rate of its network

With MSG_ZEROCOPY the kernel sends from the program's pages, and reports for each send whether it had to copy after all.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import struct
import threading
import time

SO_ZEROCOPY, MSG_ZEROCOPY, CODE_COPIED = 60, 0x4000000, 1
BYTES, SENDS, ROUNDS = 1 << 20, 200, 4


def receive(listener: socket.socket) -> None:
    """Reads all that connections send, one connection after the other."""
    room = bytearray(BYTES)
    while True:
        connection, _ = listener.accept()
        with connection:
            while connection.recv_into(room):
                pass


def send(address: tuple[str, int], flags: int) -> tuple[float, float, int, int]:
    """Returns Gbit/s, processor seconds per GB in this process, and the sends that the kernel copied and did not."""
    copied = kept = 0
    data = memoryview(bytearray(BYTES))
    with socket.create_connection(address) as connection:
        if flags:
            connection.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
        began, processor = time.perf_counter(), time.process_time()
        for _ in range(SENDS):
            rest = data
            while rest:
                rest = rest[connection.send(rest, flags) :]
            while flags:
                try:
                    _, reports, _, _ = connection.recvmsg(0, 512, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
                except BlockingIOError:
                    break
                for *_, report in reports:
                    is_copied = struct.unpack("IBBBBII", report[:16])[3] == CODE_COPIED
                    copied, kept = copied + is_copied, kept + (not is_copied)
        seconds, processor = time.perf_counter() - began, time.process_time() - processor
    return SENDS * BYTES * 8 / seconds / 1e9, processor / (SENDS * BYTES / 1e9), copied, kept


def main() -> None:
    """Serves, or sends by turns and prints medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", type=int, metavar="PORT")
    parser.add_argument("--connect", metavar="HOST:PORT")
    args = parser.parse_args()
    if args.serve:
        receive(socket.create_server(("", args.serve)))
    if args.connect:
        host, _, port = args.connect.rpartition(":")
        address = host, int(port)
    else:
        listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=receive, args=(listener,), daemon=True).start()
        address = listener.getsockname()
    found = [(send(address, 0), send(address, MSG_ZEROCOPY)) for _ in range(ROUNDS)]
    for name, rows in zip(("copy", "MSG_ZEROCOPY"), zip(*found, strict=True), strict=True):
        rate, processor = (statistics.median(column) for column in list(zip(*rows, strict=True))[:2])
        copied, kept = (sum(column) for column in list(zip(*rows, strict=True))[2:])
        print(
            f"{name:13} {rate:6.1f} Gbit/s {processor:6.2f} s of processor per GB; copied {copied}, not copied {kept}"
        )


if __name__ == "__main__":
    main()
