"""The rail addresses that have changed since the processes were connected."""

from __future__ import annotations

import json

from jaxcomm.distributed import store


class ChangedAddresses:
    """Publishes this process's changed addresses, and finds those of other processes. Each generation begins with none.

    addresses = ChangedAddresses(process=3)
    addresses.publish("eth1", "10.1.0.9", 41234)
    addresses.find(2, "eth1")                        # None: as at the start
    """

    def __init__(self, process: int) -> None:
        """Takes the number of this process."""
        self._process = process

    def publish(self, rail: str, address: str, port: int) -> None:
        """Publishes the address and the port at which this process listens on a rail now.

        Raises:
          JaxcommError: the job's key-value store has failed.
        """
        store.replace(f"rails/{self._process}/{rail}", json.dumps([address, port]))

    def find(self, process: int, rail: str) -> tuple[str, int] | None:
        """Returns the address and the port that a process has published last, or None.

        Raises:
          JaxcommError: the job's key-value store has failed.
        """
        text = store.find(f"rails/{process}/{rail}")
        if text is None:
            return None
        address, port = json.loads(text)
        return address, port
