"""Times message-level simulations: 1024 ranks, 64 MiB, every schedule, on equal links and on racks with shared uplinks.

Run from the repository's root: `.venv/bin/python benchmarks/simulate.py`
"""

from __future__ import annotations

import time

from jaxcomm import schedules, simulate
from jaxcomm.report.tables import seconds_text, table

_RANKS, _NBYTES = 1024, 64 << 20
_ALPHA, _BETA = 10e-6, 1 / 25e9
_RACK = 32  # ranks of a rack

_SCHEDULES = {
    "ring": lambda: schedules.ring(_RANKS),
    "halving/doubling": lambda: schedules.halving_doubling(_RANKS),
    "direct": lambda: schedules.direct(_RANKS),
    "straggler, 256 chunks": lambda: schedules.straggler(_RANKS, 0, 256),
    "hybrid, 256 of 1280 chunks": lambda: schedules.hybrid(_RANKS, 0, 1280, 256),
}
_NETWORKS = {
    "alike": simulate.Network(_ALPHA, _BETA),
    "racks": simulate.Network(
        _ALPHA,
        _BETA,
        racks=tuple(rank // _RACK for rank in range(_RANKS)),
        uplinks=(4.0,) * (_RANKS // _RACK),
    ),
}


def main() -> None:
    """Prints one row for each schedule and network."""
    rows = []
    for name, make in _SCHEDULES.items():
        for kind, network in _NETWORKS.items():
            schedule, start, used = make(), time.perf_counter(), time.process_time()
            run = simulate.run(schedule, _NBYTES, network)
            took, used = time.perf_counter() - start, time.process_time() - used
            count = sum(len(messages.src) for messages in run.phases)
            rows.append(
                [name, kind, count, seconds_text(float(run.finish_s.max())), seconds_text(took), seconds_text(used)]
            )
    print(table(["schedule", "links", "messages", "predicted", "simulated in", "of a core"], rows))


if __name__ == "__main__":
    main()
