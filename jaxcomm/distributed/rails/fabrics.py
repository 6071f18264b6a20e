"""The fabrics of this machine: the domains of libfabric in which a rail can be opened."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from jaxcomm.errors import JaxcommError
from jaxcomm.ffi.cpu import CPU

TEST_PROVIDERS: Final = ("tcp", "net", "udp", "sockets", "shm")  # libfabric's providers that need no fabric


class Fabric(NamedTuple):
    """A domain of libfabric.

    Attributes:
      provider: libfabric's name of the provider, such as "verbs;ofi_rxm".
      domain: the name of the domain, such as "mlx5_0".
      mbit: the rate in Mbit/s; 0 if libfabric does not know it.
    """

    provider: str
    domain: str
    mbit: int

    @property
    def rail(self) -> str:
        """The rail's name, as in JAXCOMM_RAILS."""
        return f"fabric:{self.provider}/{self.domain}"

    @property
    def is_for_tests(self) -> bool:
        """Whether a rail over this provider is slower than TCP, so that only tests use it."""
        return is_for_tests(self.provider)


def is_for_tests(provider: str) -> bool:
    """Whether a rail over this provider is slower than TCP, so that only tests use it."""
    return provider.partition(";")[0] in TEST_PROVIDERS


def domains() -> list[Fabric]:
    """Returns the fabrics in libfabric's order; an empty list if this machine has no libfabric."""
    try:
        found = json.loads(CPU.text("fabric_domains"))
    except JaxcommError:
        return []
    return [Fabric(each["provider"], each["domain"], each["mbit"]) for each in found]
