"""A plan of timed schedules beside the direct schedule, while one rank is late: predicted and measured times.

    jaxcomm profile --late rank=3,ms=20 --out profile.json
    python benchmarks/late_rank_plans.py profile.json
    jaxcomm launch -n 4 -- jaxcomm profile --late rank=3,ms=20 --out profile.json
    jaxcomm launch -n 4 benchmarks/late_rank_plans.py profile.json

Both take turns in one launch, A B A B, and each rank writes its buffer before each call. The times are from the late
rank's arrival to the end, on the process that ends last; medians of all turns. With `--again 4` all schedules of the
profile are timed again, as `jaxcomm profile` does, in four blocks between blocks of these turns. The last two columns
then compare the plan's schedule in these blocks with its turns, and its slowest block with its fastest.
"""

from __future__ import annotations

import numpy as np
from absl import app, flags

from jaxcomm import planner, profile
from jaxcomm.cli.common import arguments, job, progress
from jaxcomm.distributed.launch.job import is_job
from jaxcomm.measure.schedules import FINALISTS, Lateness, TurnCounts, take_turns
from jaxcomm.plan.timed import single, timed_spec
from jaxcomm.plan.values import Plain
from jaxcomm.report.tables import bytes_text, seconds_text, table
from jaxcomm.report.words import spec_text
from jaxcomm.simulate import Delays, timed_costs

SIZES = flags.DEFINE_string("sizes", "64KiB,256KiB,1MiB,2MiB,4MiB,8MiB,16MiB,32MiB,64MiB", "bytes per rank")
TURNS = flags.DEFINE_integer("turns", 14, "of each side", lower_bound=2)
AGAIN = flags.DEFINE_integer("again", 0, "blocks in which the profile's schedules are timed again", lower_bound=0)


def main(words: list[str]) -> None:
    """Measures, and prints on the first process."""
    measured = profile.load(words[1])
    job.use_devices(measured.ranks)  # before JAX is imported
    import jaxcomm
    from jaxcomm.cli.common import spmd

    if is_job():
        jaxcomm.init()
    made, late = planner.plan(measured), profile.find_straggler(measured)
    assert measured.timed_schedules and made.roles
    costs = timed_costs(measured.timed_schedules, measured.ranks, made.links, len({*measured.hosts}) or 1)
    mesh, delays, rows = spmd.mesh(measured.ranks), Delays(late.delays), []
    usual = single(Plain(kind="direct"), measured.ranks, late.rank)
    sizes = arguments.sizes(SIZES.value)
    with progress.Bar(len(sizes), "measuring") as bar:
        for nbytes in sizes:
            blocks = max(1, AGAIN.value)
            count = -(-TURNS.value // blocks)
            lateness = Lateness(late.rank, late.median_s, late.median_s)
            turns = TurnCounts(count, count)
            spec = made.collectives[made.index_for(nbytes)].schedule
            found_direct, found_planned, again = list[float](), list[float](), list[float]()
            for _ in range(blocks):
                direct, planned = take_turns(mesh, [usual, made], nbytes, lateness, seconds=np.inf, turns=turns)
                found_direct += direct.late
                found_planned += planned.late
                if AGAIN.value:
                    again.append(timed_again(measured, spec, mesh, nbytes, late))
            phases = [costs.phases(plan.schedule_for(nbytes), nbytes) for plan in (usual, made)]
            usually, predicted = (float(delays.exposed(before)) + after for before, after in phases)
            found, beside = np.median(found_planned), np.median(found_direct)
            pairs = np.array(found_direct) / np.array(found_planned)
            times = [seconds_text(float(each)) for each in (beside, found, predicted)]
            ratios = [f"{beside / found:.2f}", f"{np.sum(pairs > 1)} of {len(pairs)}", f"{usually / beside:.2f}"]
            ratios.append(f"{predicted / found:.2f}")
            if again:
                ratios += [f"{np.median(again) / found:.2f}", f"{max(again) / min(again):.2f}"]
            rows.append([bytes_text(nbytes), spec_text(spec), *times, *ratios])
            bar.update()
    if job.is_first():
        head = ["bytes", "the plan runs", "direct", "plan", "predicted", "direct/plan", "pairs won"]
        head += ["direct by the profile/direct", "predicted/plan"]
        head += ["timed again/plan", "most/least of these"] * (AGAIN.value > 0)
        print(table(head, rows))


def timed_again(measured, spec, mesh, nbytes: int, late) -> float:
    """Times all schedules of a profile in one block. Returns the time of `spec` after the late rank's arrival."""
    specs = list(dict.fromkeys([*(timed_spec(each.name) for each in measured.timed_schedules.schedules), spec]))
    plans = [single(each, measured.ranks, late.rank, topology=measured.network) for each in specs]
    lateness = Lateness(late.rank, late.median_s)
    found = take_turns(mesh, plans, nbytes, lateness, seconds=0.0, turns=TurnCounts(finalists=FINALISTS))
    return float(np.median(found[specs.index(spec)].late))


if __name__ == "__main__":
    app.run(main)
