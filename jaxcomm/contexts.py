"""What JAX's caches of traced and compiled functions depend on beside its own settings; threads have their own values.

JAX compiles everything anew once one of these is made, so they are made before anything is traced.
"""

from __future__ import annotations

import jax

active_plans = jax.make_user_context(())  # see communicator.Hashes
replacing_lax = jax.make_user_context(False)
