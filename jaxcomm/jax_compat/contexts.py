"""Our settings on which JAX's caches of traced and compiled functions depend; each thread has its own values.

A new setting makes JAX trace and compile everything again, so all settings are made before any tracing. Since JAX 0.12,
the first import of `jax.extend` also makes settings. Collectives use `jax.extend`, so it is imported here.
"""

from __future__ import annotations

import jax
import jax.extend  # the import itself creates settings of JAX

from jaxcomm.environment import TRIAL, is_on

_TRIES = is_on(TRIAL, default=True)  # read before settings are made, because an invalid value raises

active_plans = jax.make_user_context(())  # see active_plan.Hashes
replacing_lax = jax.make_user_context(False)
trying_plans = jax.make_user_context(_TRIES)
hosts = jax.make_user_context(())  # by process: the first process on its host; () until a process moves to another host
