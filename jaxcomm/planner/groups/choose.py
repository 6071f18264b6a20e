"""Chooses which ranks average together in each iteration if links between racks, or some NICs, are slow.

All ranks agree only if every rank averages with another rank through its NIC, and every rack with another rack through
its uplink. In every pattern the slowest group therefore takes at least the time of a pair over the slowest link. Pairs
attain this time, so the least cost is known without a solver. Training suffers if the ranks' models differ much and for
long. Among the patterns of the least cost, `decide` therefore takes the one that leaves the least disagreement per
second. There are candidates of several kinds, and `search` improves them.
"""

from __future__ import annotations

from typing import Final

from jaxcomm.errors import ProfileError
from jaxcomm.plan.consensus import components, contraction, left
from jaxcomm.plan.groups import MAX_GROUPED, Baselines, GroupCosts, Groups, Pattern, RackRanks
from jaxcomm.planner.groups.divisions import SLACK, Division, Shuffle, paper, path, racks_in_turn
from jaxcomm.planner.groups.search import descended
from jaxcomm.planner.rounding import significant
from jaxcomm.profile import Profile
from jaxcomm.simulate import baselines

SMALL: Final = 64  # for up to this many ranks, randomly drawn patterns of all `PERIODS` are tried
PERIODS: Final = range(1, 17)
LONG: Final = 32  # period of the randomly drawn pattern for more than `SMALL` ranks
FEW: Final = 16  # for up to this many ranks, `search` improves the patterns
CURE: Final = "\n  Cure: "


def decide(profile: Profile, model_bytes: int | None = None, seed: int = 0) -> Groups | None:
    """The groups of every iteration.

    Among the patterns whose slowest group takes the least time, the chosen pattern leaves the least disagreement per
    second.

    Args:
      profile: the measurements; its `racks` and `nics` say which links are slow.
      model_bytes: the bytes that a group averages; None: all gradient buckets, or the profile's collective.
      seed: seed of the draws.

    Returns:
      The groups; None if all ranks are in one rack with equal NICs, so that no division avoids a slow link.

    Raises:
      ProfileError: the number of averaged bytes is unknown, or there are too many ranks.
    """
    nics = tuple(profile.nics) or (1.0,) * profile.ranks
    if len(profile.racks) < 2 and max(nics) == min(nics):
        return None
    if profile.ranks > MAX_GROUPED:
        raise ProfileError(
            f"racks: groups are planned for at most {MAX_GROUPED} ranks; these are {profile.ranks}.{CURE}"
            "leave racks and nics out of the profile."
        )
    racks = tuple(RackRanks(ranks=tuple(rack.ranks), uplink=rack.uplink) for rack in profile.racks)
    racks = racks or (RackRanks(ranks=tuple(range(profile.ranks)), uplink=1.0),)
    nbytes = _model_bytes(profile, model_bytes)
    return on(GroupCosts(racks, nics, nbytes, profile.link.alpha_s, profile.link.beta_s_per_byte), seed)


def on(links: GroupCosts, seed: int = 0) -> Groups:
    """The groups for this network, as `decide` chooses them; the same links and seed give the same groups."""
    theirs = paper(links)[:LONG]
    chosen, rho = _best(links, theirs, seed)
    return Groups(
        bytes=links.nbytes,
        racks=tuple(links.racks),
        nics=tuple(links.nics),
        iterations=tuple(tuple(map(tuple, division)) for division in chosen),
        seconds=tuple(significant(links.seconds(division)) for division in chosen),
        rho=rho,
        status="OPTIMAL",
        bound=significant(links.least),
        baselines=_baselines(links),
        pattern=Pattern(
            seconds=significant(_slowest(theirs, links)),
            period=len(theirs),
            rho=significant(contraction(theirs, len(links.nics))),
        ),
    )


def _model_bytes(profile: Profile, given: int | None) -> int:
    nbytes = given or sum(bucket.bytes for bucket in profile.buckets)
    if not nbytes and profile.collective:
        nbytes = profile.collective.bytes
    if not nbytes:
        raise ProfileError(
            "racks or nics: groups are planned for the model's bytes, but the profile has neither buckets nor a "
            f"collective.{CURE}say how many with `jaxcomm plan --model-bytes 100MiB`."
        )
    return nbytes


def _best(links: GroupCosts, theirs: list[Division], seed: int) -> tuple[list[Division], float]:
    """Returns the best pattern of divisions, and its ρ.

    Of the patterns that bring all ranks to agreement, the best one leaves the least disagreement per second. If several
    leave equally little, the one that takes the least time is the best.
    """
    ranks = len(links.nics)
    lengths = PERIODS if ranks <= SMALL else [LONG]
    drawn = Shuffle(links, links.least).iterations(max(lengths), seed)
    starts = [path(links), racks_in_turn(links)[: max(PERIODS)], theirs, drawn]
    starts = [start for start in starts if _slowest(start, links) <= links.least * SLACK]
    offers = [*starts, *(drawn[:length] for length in lengths)]
    if ranks <= FEW:
        offers += descended(links, starts, seed)
    found = []
    for offer in offers:
        if len(set(components(offer, ranks))) == 1:
            rho = round(contraction(offer, ranks), 9)
            seconds = sum(map(links.seconds, offer))
            found.append((round(left(rho, seconds, links.least), 6), significant(seconds), offer, rho))
    _, _, chosen, rho = min(found, key=lambda offer: offer[:2])
    return chosen, rho


def _slowest(pattern: list[Division], links: GroupCosts) -> float:
    return max(map(links.seconds, pattern))


def _baselines(links: GroupCosts) -> Baselines:
    """The times of synchronising all ranks, by the formulas of the paper.

    Every rack counts as large as the largest rack, and every link as slow as the slowest link of its kind.
    """
    slowest = max(links.nics)
    given = baselines.RackedWorkers(
        racks=len(links.racks),
        per_rack=max(len(rack.ranks) for rack in links.racks),
        nbytes=links.nbytes,
        alpha=links.alpha,
        within=links.beta * slowest,
        between=links.beta * max(slowest, *(rack.uplink for rack in links.racks)),
    )
    return Baselines(**{name: significant(getattr(baselines, name)(given).seconds) for name in Baselines.model_fields})
