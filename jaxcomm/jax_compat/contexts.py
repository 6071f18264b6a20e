"""Settings of ours on which JAX's caches of traced and compiled functions depend; threads have their own values.

JAX traces and compiles everything anew once a setting is made, so all are made before anything is traced: these, and
those that JAX makes when `jax.extend`, which collectives use, is first imported (since 0.12).
"""

from __future__ import annotations

import os

import jax
import jax.extend  # makes settings

from jaxcomm.environment import TRIAL

active_plans = jax.make_user_context(())  # see communicator.Hashes
replacing_lax = jax.make_user_context(False)
trying_plans = jax.make_user_context((os.environ.get(TRIAL) or "1") == "1")
