"""Limits on what a plan may hold, so that a damaged file cannot use up memory or time."""

from __future__ import annotations

from typing import Final

MAX_CHUNKS: Final = 65536
MAX_MOVES: Final = 4 * 65536
MAX_TOGETHER: Final = 256  # maximum ranks of a schedule for several late ranks; its messages are computed one by one
MAX_CHAINED: Final = 2**20  # maximum total of ranks · chunks of all chains; each chain is executed for its proof
LEAST_CHAINED: Final = 2**14  # a chain counts as at least this many ranks · chunks: small chains have many rounds, too
MAX_ALTERNATIVES: Final = 64  # maximum number of alternatives of an entry
MAX_LISTED: Final = 2**16  # maximum total of ranks · chunks of hierarchical schedules; transfers are timed one by one
MAX_SOLVED: Final = 2**16  # maximum total of ranks · chunks and move-list lengths of solved schedules; proofs run them
MAX_LOST_RAILS: Final = 16  # maximum number of (host, rail) pairs with schedules; loading a plan builds all of them
MAX_TURNS: Final = 16  # maximum ranks if any rank may be late; loading a plan then builds one schedule per rank
