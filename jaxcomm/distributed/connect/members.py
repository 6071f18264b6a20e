"""The processes of this job, which connect once for each `jax.distributed.initialize`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxcomm import jax_compat
from jaxcomm.distributed import store
from jaxcomm.distributed.connect import settings, stages
from jaxcomm.distributed.connect.connecting import connect_as
from jaxcomm.distributed.connect.job_core import JobCore
from jaxcomm.distributed.connect.membership import Membership, MessageCore
from jaxcomm.distributed.connect.settings import NamedRail, Settings
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi.shares import PlanRails
from jaxcomm.log import say_once

_lock = threading.Lock()
# The store's client, the membership or the error of connecting, the settings, and the plan's rails.
_connected: tuple[Any, Membership | Exception, Settings, PlanRails | None] | None = None
_core: MessageCore | None = None  # the latest generation's core, even if connecting failed
_generation = 0


def connected(
    named: Sequence[NamedRail] = (),
    planned: PlanRails | None = None,
    planned_transport: str = "",
    *,
    new_core: Callable[[], MessageCore] = JobCore,
) -> Membership:
    """Returns this process's membership. The first call connects this process with every other process.

    All processes must call this. `jaxcomm.distributed.connect.settings` says how they are connected.

    Args:
      named: rails that replace the rails of the settings; () keeps the settings' rails.
      planned: the rails of a plan.
      planned_transport: the plan's transport, "tcp" or "udp", or "".
      new_core: creates the core. The core is started when this returns.

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
            _connected = client, made, chosen, planned
        _, outcome, chosen, followed = _connected
    if isinstance(outcome, Exception):
        raise outcome
    if named and tuple(named) != chosen.rails:
        raise JaxcommError(
            f"this process is already connected over {_words(chosen.rails) or 'detected rails'}; "
            f"it is too late for {_words(named)}.\n"
            "  Cure: call jaxcomm.init(rails=…) before the first collective, in all processes."
        )
    if planned and planned != followed and any(len(each[0].shares) > 1 for each in outcome.shares.values()):
        say_once(
            "the processes are already connected: the rails keep their shares, and the plan's shares are ignored. "
            "Call jaxcomm.init(plan=…) before the first collective."
        )
    protocols = {"tcp", "udp"} & {*outcome.transports}
    if planned_transport not in ("", chosen.planned_transport) and chosen.follows_plan and protocols:
        say_once(
            f"the processes are already connected: hosts keep using {' and '.join(protocols).upper()} instead of the "
            "plan's choice. Call jaxcomm.init(plan=…) before the first collective."
        )
    return outcome


def leave_last_job() -> None:
    """Leaves the job with which this process is connected, if `jax.distributed` has been shut down since.

    Raises:
      JaxcommError: a call between the job's processes has not ended.
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
