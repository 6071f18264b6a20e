"""Names and addresses of a testbed: namespaces, interfaces, IP and MAC addresses. Nothing here touches the machine.

All switches are bridges in one namespace. Every host has its own namespace. Rail k is 10.77.k.0/24, and the control
network is 10.77.255.0/24. These networks exist only inside the namespaces, so concurrent testbeds use the same
addresses.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Final

from jaxcomm.testbed.schema import CONTROL, Testbed

PREFIX: Final = "jaxcomm-"
_CONTROL_NETWORK: Final = 255


@dataclass(frozen=True)
class Layout:
    """The names and addresses of a testbed's parts. `id` distinguishes the testbed from others on the machine."""

    testbed: Testbed
    id: str

    @property
    def switch(self) -> str:
        """The namespace of the bridges."""
        return PREFIX + self.id

    def namespace(self, host: str) -> str:
        """The namespace of a host."""
        return f"{self.switch}-{host}"

    @property
    def namespaces(self) -> list[str]:
        """The namespaces of the bridges and of all hosts."""
        return [self.switch, *(self.namespace(host.name) for host in self.testbed.hosts)]

    def boot_id(self, host: str) -> str:
        """The boot id of a host. JAX and other programs distinguish machines by their boot ids."""
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, self.namespace(host)))

    def address(self, host: str, network: str) -> str:
        """The IPv4 address of a host in a rail, or in the control network."""
        return f"10.77.{self._network(network)}.{self._host(host) + 1}"

    def second_address(self, host: str, network: str) -> str:
        """The address of a host in a rail while the host's interface is renumbered."""
        return f"10.77.{self._network(network)}.{self._host(host) + 129}"

    def subnet(self, network: str) -> str:
        """The addresses of a rail, or of the control network."""
        return f"10.77.{self._network(network)}.0/24"

    def mac(self, host: str, network: str) -> str:
        """The MAC address of a host's interface to a network."""
        return f"02:00:00:00:{self._network(network):02x}:{self._host(host) + 1:02x}"

    def port(self, host: str, network: str) -> str:
        """The interface in the bridges' namespace at the end of a host's link."""
        return f"n{self._network(network)}host{self._host(host)}"

    def bridge(self, host: str, network: str) -> str:
        """The bridge to which a host's link leads."""
        rack = self.testbed.hosts[self._host(host)].rack
        return self.core(network) if rack is None or network == CONTROL else self.rack_bridge(rack, network)

    def core(self, network: str) -> str:
        """The bridge that connects all hosts of a network, or the uplinks of all racks."""
        return f"n{self._network(network)}core"

    def rack_bridge(self, rack: str, rail: str) -> str:
        """The bridge of a rack."""
        return f"n{self._network(rail)}rack{self._rack(rack)}"

    def uplink(self, rack: str, rail: str) -> tuple[str, str]:
        """The two interfaces of a rack's uplink: at the rack's bridge, and at the rail's core bridge."""
        return f"n{self._network(rail)}up{self._rack(rack)}", f"n{self._network(rail)}down{self._rack(rack)}"

    def leaf(self, host: str, rail: str) -> int:
        """The number of the switch to which a host's link to a rail leads. Each rail has a network of its own."""
        rack = self.testbed.hosts[self._host(host)].rack
        return 0 if rack is None else self._network(rail) * len(self.testbed.racks) + self._rack(rack)

    def _network(self, name: str) -> int:
        return _CONTROL_NETWORK if name == CONTROL else [rail.name for rail in self.testbed.rails].index(name)

    def _host(self, name: str) -> int:
        return [host.name for host in self.testbed.hosts].index(name)

    def _rack(self, name: str) -> int:
        return [rack.name for rack in self.testbed.racks].index(name)
