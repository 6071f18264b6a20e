"""Random clusters of hosts and racks, and schedules that plans for them are compared with; also for benchmarks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from jaxcomm import planner, profile, schedules, simulate
from jaxcomm.plan.specs import links_of
from jaxcomm.planner.late_ranks import ROLE, LateRanks
from jaxcomm.planner.schedules import Setting, choose
from jaxcomm.profile import Profile
from jaxcomm.profile.cluster import Cluster, Topology
from jaxcomm.schedules import Schedule
from jaxcomm.simulate import Network
from jaxcomm.simulate.parts_bound import least_time

SIZES = (2**14, 2**20, 2**26)
# A range's choice may take 2 % longer at some of its sizes, gains below 2 % are not taken, and 1 % is spare.
SLOWER = 1.03 * 1.02
APART = 0.03  # maximum relative difference of model and run; not checked for shared links, which queue messages


class Comparison(NamedTuple):
    """The time of a plan's choice divided by the fastest rival's time, in a run and by the model.

    `apart` is the relative difference of the choice's times in a run and by the model; 0 if links are shared.
    """

    seed: int
    nbytes: int
    chosen: str
    rival_by_run: str
    by_run: float
    rival_by_model: str
    by_model: float
    apart: float

    @property
    def passes(self) -> bool:
        """Whether no rival is clearly faster, and the model agrees with the run."""
        return max(self.by_run, self.by_model) <= SLOWER and self.apart <= APART


def random_cluster(seed: int) -> Profile:
    """A random cluster of two or three hosts, with or without racks, late ranks and delays."""
    dice = random.Random(seed)
    sizes = [dice.randrange(1, 5) for _ in range(dice.randrange(2, 4))]
    hosts = [host for host, size in enumerate(sizes) for _ in range(size)]
    ranks = len(hosts)
    beta = 10 ** dice.uniform(-11, -9)
    row = [0.0] * ranks
    if dice.random() < 0.7:
        for rank in dice.sample(range(1, ranks), dice.randrange(1, min(3, ranks))):
            row[rank] = dice.choice([0.0, 1e-5, 1e-4, 1e-3, 1e-2, 1.0])
    racks = []
    if len(sizes) > 2 and dice.random() < 0.4:
        parts = [[r for r in range(ranks) if (hosts[r] < 2) == first] for first in (True, False)]
        racks = [
            {"name": f"{i}", "ranks": part, "uplink": dice.choice([1.0, 2.0, 4.0])} for i, part in enumerate(parts)
        ]
    nic, slow = dice.choice(["rank", "host"]), dice.choice([1.0, 2.0, 4.0, 9.0])
    return profile.validate(
        {
            "format": "jaxcomm-profile",
            "version": 1,
            "ranks": ranks,
            "link": {"alpha_s": 10 ** dice.uniform(-6, -5), "beta_s_per_byte": beta, "source": "a test"},
            "arrivals": [row] * 3 if any(row) else [],
            "topology": {"hosts": hosts, "nic": nic, "slow": slow},
            "racks": racks,
            "provenance": {"source": "a test", "tool": "pytest"},
        },
        "a test",
    )


def unlike_cluster(seed: int) -> Profile:
    """A random cluster of hosts whose NICs differ in rate, with or without racks and a late rank."""
    dice = random.Random(seed)
    alone = dice.random() < 0.6
    sizes = [1 if alone else dice.randrange(1, 4) for _ in range(dice.randrange(2, 9 if alone else 5))]
    if sum(sizes) < 3:
        sizes.append(1)
    hosts = [host for host, size in enumerate(sizes) for _ in range(size)]

    def slowness() -> float:
        return dice.choice([1.0, 1.0, 1.25, 1.5, 2.0, 4.0, 10.0]) if dice.random() < 0.7 else dice.uniform(1.0, 5.0)

    of_host, nic = [slowness() for _ in sizes], dice.choice(["rank", "host"])
    own = [of_host[host] if nic == "host" or dice.random() < 0.7 else slowness() for host in hosts]
    row = [0.0] * len(hosts)
    if dice.random() < 0.3:
        row[dice.randrange(1, len(hosts))] = dice.choice([1e-4, 1e-3, 1e-2, 1.0])
    racks = []
    if len(sizes) > 2 and dice.random() < 0.3:
        cut = dice.randrange(1, len(sizes))
        parts = [[r for r, host in enumerate(hosts) if (host < cut) == first] for first in (True, False)]
        racks = [
            {"name": f"{i}", "ranks": part, "uplink": dice.choice([1.0, 2.0, 4.0])} for i, part in enumerate(parts)
        ]
    topology = {"hosts": hosts, "nic": nic, "slow": dice.choice([1.0, 2.0, 4.0])}
    return profile.validate(
        {
            "format": "jaxcomm-profile",
            "version": 1,
            "ranks": len(hosts),
            "link": {
                "alpha_s": 10 ** dice.uniform(-6, -5),
                "beta_s_per_byte": 10 ** dice.uniform(-11, -9),
                "source": "a test",
            },
            "arrivals": [row] * 3 if any(row) else [],
            "topology": None if alone and not racks else topology,
            "racks": racks,
            "nics": own if len({*own}) > 1 else [2.0, *[1.0] * (len(own) - 1)],
            "provenance": {"source": "a test", "tool": "pytest"},
        },
        "a test",
    )


def beside_bound(topology: Topology, multiple: int = 16) -> float:
    """The time of a run of the hierarchical schedule, without latency, divided by the bound."""
    schedule = schedules.hierarchical(links_of(topology), multiple * len(topology.hosts))
    run = simulate.run(schedule, 1, Network(0.0, 1.0, topology))
    return float(run.finish_s.max()) / least_time(topology)


class LateOne(NamedTuple):
    """Hosts of one rank each whose links have unlike rates, and a late rank. A buffer takes 1 s through a fast link."""

    topology: Topology
    late: int
    delay: float

    @property
    def bound(self) -> float:
        """The least time from the late rank's arrival on, if the others sum all they can before the arrival."""
        slowness = self.topology.nics
        ranks, rate = len(slowness), sum(1 / each for each in slowness)
        before = min(ranks - 2, self.delay * (rate - 1 / slowness[self.late]))
        return max(*slowness, (2 * (ranks - 1) - before) / rate)

    def beside_bound(self) -> float:
        """The time of a run of the planner's choice, without latency, divided by the bound."""
        ranks, nbytes = len(self.topology.nics), 2**26
        late = LateRanks({ROLE: self.late}, simulate.Delays([self.delay]))
        template = schedules.template(ranks)
        setting = Setting(ranks, Cluster(1e-9, 1 / nbytes, self.topology), simulate.PORTS, 0.0, late, template)
        row = [self.delay * (rank == self.late) for rank in range(ranks)]
        run = simulate.run(setting.schedule(choose(setting, nbytes)), 1, Network(0.0, 1.0, self.topology), row)
        return (float(run.finish_s.max()) - self.delay) / self.bound


def unlike_with_a_late_rank(seed: int) -> LateOne:
    """A random case. The rank is late by 0.25 to 1.25 times the time that the others need to sum all they can.

    In half of the cases rates differ by at most 1.5, so that no slow rank's own bytes hide other costs of a schedule.
    """
    dice = random.Random(seed)
    ranks = dice.randrange(3, 9)
    if dice.random() < 0.5:
        slowness = [dice.uniform(1.0, 1.5) for _ in range(ranks)]
    else:
        slowness = [dice.choice([1.0, 1.0, 1.25, 1.5, 2.0, 4.0, 10.0]) for _ in range(ranks)]
    slowness = [each / min(slowness) for each in slowness]
    if max(slowness) == 1:
        slowness[0] = 2.0
    late = dice.randrange(ranks)
    needed = (ranks - 2) / sum(1 / each for rank, each in enumerate(slowness) if rank != late)
    topology = Topology(hosts=tuple(range(ranks)), nic="rank", slow=1.0, nics=tuple(slowness))
    return LateOne(topology, late, dice.choice([0.25, 0.5, 0.75, 1.0, 1.25]) * needed)


def rivals(topology: Topology, late: tuple[int, ...]) -> list[Schedule]:
    """Schedules to compare a plan with: the usual ones, hierarchical ones, and ones for the last late rank.

    If links are unlike, the hierarchical schedules are made both for these links and for links that are alike.
    """
    if topology.is_unlike:
        alike = topology.model_copy(update={"nics": (), "uplinks": tuple(1.0 for _ in topology.uplinks)})
        many = [k * len(topology.hosts) for k in (1, 4, 16)]
        return [*rivals(alike, late), *(schedules.hierarchical(links_of(topology), k) for k in many)]
    ranks, links = len(topology.hosts), links_of(topology)
    orders = schedules.orders_by_host(topology.hosts).values()
    found = [schedules.ring(ranks), schedules.direct(ranks), *(schedules.halving_doubling(ranks, o) for o in orders)]
    tiers = len({*topology.hosts}) < ranks or topology.racks
    if tiers:
        found += [schedules.hierarchical(links, k * ranks) for k in (1, 4, 16)]
    if late:
        found += [schedules.broadcast(ranks, late[-1]), schedules.straggler(ranks, late[-1], ranks - 1)]
        found += [schedules.direct_join(ranks, late[-1], m * (ranks - 1)) for m in (1, 4)] if ranks > 2 else []
        for k in (4 * ranks, 16 * ranks) if tiers else ():
            found.append(schedules.hierarchical(links, k, late[-1:], k, k))
    return found


def compared(seed: int, of: Callable[[int], Profile] = random_cluster) -> Iterator[Comparison]:
    """Plans for a cluster, and compares the plan's choice for each of `SIZES` with its rivals."""
    cluster = of(seed)
    assert cluster.network
    made = planner.plan(cluster, time_limit=0.2, model_bytes=2**20)
    late, link = LateRanks.of(cluster).ranks, (cluster.link.alpha_s, cluster.link.beta_s_per_byte)
    row = cluster.arrivals[0] if cluster.arrivals else [0.0] * cluster.ranks
    network = Network(*link, cluster.network)

    def seconds(schedule: Schedule, nbytes: int) -> tuple[float, float]:
        run = float(simulate.run(schedule, nbytes, network, row).finish_s.max()) - max(row)
        return run, simulate.mean_seconds(schedule, nbytes, *link, cluster.network, late, [row])

    offers = rivals(cluster.network, late)
    for nbytes in SIZES:
        chosen = made.schedule_for(nbytes)
        assert chosen is not None
        run, model = seconds(chosen, nbytes)
        times = {f"{offer.kind}, {offer.num_chunks} chunks": seconds(offer, nbytes) for offer in offers}
        first, second = (min(times, key=lambda name: times[name][by]) for by in range(2))
        shared = cluster.network.nic == "host" or cluster.network.racks
        yield Comparison(
            seed,
            nbytes,
            f"{chosen.kind}, {chosen.num_chunks} chunks",
            first,
            run / times[first][0],
            second,
            model / times[second][1],
            0.0 if shared else abs(model / run - 1),
        )
