"""Limits on what a plan may hold, so that a damaged file cannot use up memory or time."""

from __future__ import annotations

from typing import Final

MAX_CHUNKS: Final = 65536
MAX_MOVES: Final = 4 * 65536
MAX_TOGETHER: Final = 256  # maximum ranks of a schedule for several late ranks; its messages are computed one by one
MAX_CHAINED: Final = 2**20  # ranks · chunks of all chains in total; each chain is executed for its proof
LEAST_CHAINED: Final = 2**14  # minimum that a chain counts as, in ranks · chunks, because small chains have many rounds
MAX_ALTERNATIVES: Final = 64  # maximum number of alternatives of an entry
MAX_LISTED: Final = 2**16  # ranks · chunks of all hierarchical schedules in total; transfers are timed one by one
MAX_SOLVED: Final = 2**16  # total ranks · chunks plus length of move lists of solved schedules, which proofs execute
MAX_LOST_RAILS: Final = 16  # pairs of host and rail that have schedules; loading a plan builds all these schedules
MAX_TURNS: Final = 16  # maximum ranks if any rank may be late; loading a plan then builds one schedule per rank
