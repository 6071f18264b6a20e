"""Connects this process with every other one of its job, once for each `jax.distributed.initialize`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxcomm import jax_compat
from jaxcomm.distributed import settings, stages, store
from jaxcomm.distributed.connecting import connect_as
from jaxcomm.distributed.membership import Membership, MessageCore
from jaxcomm.distributed.settings import NamedRail, Settings
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi.shares import SharesFrom
from jaxcomm.log import say_once

_lock = threading.Lock()
# The store that it was made through, the membership or the error, the settings, and the planned shares of rails.
_connected: tuple[Any, Membership | Exception, Settings, tuple[SharesFrom, ...]] | None = None
_core: MessageCore | None = None  # of the last generation, also of one that could not be connected
_generation = 0


def connect(
    new_core: Callable[[], MessageCore],
    named: Sequence[NamedRail] = (),
    planned: Sequence[SharesFrom] = (),
    planned_transport: str = "",
) -> Membership:
    """Connects this process with every other one; further calls return the same membership.

    All processes must call it. `jaxcomm.distributed.settings` says how they are connected.

    Args:
      new_core: makes the core, which is started when this returns.
      named: the rails, in place of those of the settings; () leaves them.
      planned: the shares of rails in a plan.
      planned_transport: "tcp" or "udp", as a plan says, or "".

    Raises:
      JaxcommError: `jax.distributed` has not been initialized, or a process is missing or cannot be connected. Then no
        process is connected, until `jax.distributed` is initialized anew.
    """
    global _connected, _core, _generation
    with _lock:
        client = store.client()
        if _connected is None or _connected[0] is not client:
            _close()
            _generation += 1
            chosen = Settings()
            try:
                chosen = settings.from_environment()
                chosen = chosen._replace(rails=tuple(named) or chosen.rails, planned_transport=planned_transport)
                _core, coordinator = new_core(), jax_compat.coordinator_address()
                made: Membership | Exception = connect_as(
                    jax.process_index(), jax.process_count(), _core, chosen, coordinator, _generation, planned
                )
            except Exception as error:
                stages.publish_failure(jax.process_index(), error)
                made = error
            _connected = client, made, chosen, tuple(planned)
        _, outcome, chosen, followed = _connected
    if isinstance(outcome, Exception):
        raise outcome
    if named and tuple(named) != chosen.rails:
        raise JaxcommError(
            f"this process is connected already, by {_words(chosen.rails) or 'rails that were found'}; "
            f"{_words(named)} come too late.\n"
            "  Cure: call jaxcomm.init(rails=…) before the first collective, in all processes."
        )
    if planned and tuple(planned) != followed and any(len(each[0].shares) > 1 for each in outcome.shares.values()):
        say_once(
            "the processes are connected already: the rails keep the shares that they have, in place of the plan's. "
            "Call jaxcomm.init(plan=…) before the first collective."
        )
    protocols = {"tcp", "udp"} & {*outcome.transports}
    if planned_transport not in ("", chosen.planned_transport) and chosen.follows_plan and protocols:
        say_once(
            f"the processes are connected already: between hosts {' and '.join(protocols).upper()} stays, in place "
            "of the plan's choice. Call jaxcomm.init(plan=…) before the first collective."
        )
    return outcome


def close_last() -> None:
    """Ends the last generation, if `jax.distributed` has been shut down since.

    Raises:
      JaxcommError: a call between its processes has not ended.
    """
    with _lock:
        if _connected is not None and not (jax_compat.spans_processes() and _connected[0] is store.client()):
            _close()


def _close() -> None:
    global _connected, _core
    if _connected is not None and isinstance(_connected[1], Membership) and _connected[1].repair is not None:
        _connected[1].repair.close()
    _connected = None
    if _core is not None:
        _core.close()
        _core = None


def _words(named: Sequence[NamedRail]) -> str:
    return ", ".join(f"{rail.name}:{rail.rate}" if rail.rate else rail.name for rail in named)
