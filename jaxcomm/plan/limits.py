"""The limits of what a plan may hold: a file that somebody has damaged must not take all memory or time."""

from __future__ import annotations

from typing import Final

MAX_CHUNKS: Final = 65536
MAX_MOVES: Final = 4 * 65536
MAX_TOGETHER: Final = 256  # ranks of a schedule for several late ones; its messages are found one by one
MAX_CHAINED: Final = 2**20  # ranks · chunks of all chains together that are executed for their proof
LEAST_CHAINED: Final = 2**14  # the least that each counts as: small ones have many rounds, too
MAX_ALTERNATIVES: Final = 64  # of an entry
MAX_LISTED: Final = 2**16  # ranks · chunks of all hierarchical schedules together, whose transfers are timed one by one
MAX_SOLVED: Final = 2**16  # ranks · chunks and numbers of moves of all solved schedules; each is executed, too
MAX_LOST_RAILS: Final = 16  # hosts · rails with schedules of their own: all are made when a plan is loaded
MAX_TURNS: Final = 16  # ranks of calls with a schedule for each of them: all are made when a plan is loaded
