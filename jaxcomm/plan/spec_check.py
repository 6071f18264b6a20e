"""The checks of a plan's schedules against the rest of the plan: its ranks, roles, network, executors and template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from jaxcomm.plan.executors import Executors
from jaxcomm.plan.limits import MAX_TOGETHER, MAX_TURNS
from jaxcomm.plan.solved import SolvedNetwork
from jaxcomm.plan.specs import build_solved
from jaxcomm.plan.values import (
    ANY_RANK,
    Broadcast,
    Chain,
    DirectJoin,
    HalvingDoubling,
    Hierarchical,
    HierarchicalHalves,
    Hybrid,
    LateJoin,
    Nccl,
    Plain,
    ScheduleSelector,
    Spec,
    Stragglers,
    StragglerSpec,
    Transfers,
)
from jaxcomm.program.program import MAX_PIECES


class SpecCheck(NamedTuple):
    """The parts of a plan that schedules refer to."""

    ranks: int
    roles: Mapping[str, int]
    network: SolvedNetwork | None
    executors: Executors | None
    has_template: bool

    def check(self, where: str, spec: Spec) -> None:
        """Checks one schedule.

        Raises:
          ValueError: the plan lacks something that the schedule needs, or a number of the schedule is out of range.
        """
        if isinstance(spec, Plain):
            return
        if isinstance(spec, HalvingDoubling | Hierarchical | HierarchicalHalves) and not self.network:
            raise ValueError(f"network is null, but {where} is made for the hosts of its topology")
        if isinstance(spec, HalvingDoubling | HierarchicalHalves):
            return
        most = max(MAX_PIECES // self.ranks, 2 * self.ranks)
        if (
            isinstance(
                spec, StragglerSpec | Hybrid | DirectJoin | LateJoin | Hierarchical | Transfers | Stragglers | Chain
            )
            and spec.chunks > most
        ):
            raise ValueError(f"{where}.chunks is {spec.chunks}; with {self.ranks} ranks there may be {most}")
        if isinstance(spec, Nccl):
            if not (self.executors and self.executors.nccl):
                raise ValueError(f"{where}.kind is nccl, but executors has no NCCL times by which to choose it")
            return
        names = spec.late if isinstance(spec, Stragglers | Chain | Hierarchical) else (spec.late,)
        for name in names:
            if name not in self.roles:
                raise ValueError(f'{where}.late is "{name}", which roles does not bind')
        bound = {name: self.roles[name] for name in names}
        if len({*bound.values()}) < len(names):
            raise ValueError(
                f"{where}.late is {', '.join(names)}, which roles binds to {', '.join(map(str, bound.values()))}; "
                "they must be different ranks"
            )
        if len(names) > 1 and self.ranks > MAX_TOGETHER:
            raise ValueError(
                f"{where}.late names {len(names)} ranks; with {self.ranks} ranks, more than {MAX_TOGETHER}, only one "
                "can be late"
            )
        if len(names) >= self.ranks:
            raise ValueError(f"{where}.late names all {self.ranks} ranks; one must not be late")
        if isinstance(spec, Hierarchical) and max(spec.within, spec.across) > (spec.chunks if names else 0):
            raise ValueError(
                f"{where}.within is {spec.within} and across {spec.across}; neither may be above "
                + ("chunks" if names else "0, as no rank is late")
                + f", which is {spec.chunks}" * bool(names)
            )
        if isinstance(spec, StragglerSpec | Hybrid | Chain) and not self.has_template:
            raise ValueError(f"template is null, but {where} is a {spec.kind} schedule, which needs it")
        if isinstance(spec, Transfers):
            self._check_transfers(where, spec)
        if isinstance(spec, Hybrid) and spec.covered >= spec.chunks:
            raise ValueError(f"{where}.covered is {spec.covered}; it must be below chunks, which is {spec.chunks}")
        if isinstance(spec, Hybrid) and (spec.chunks - spec.covered) % self.ranks:
            raise ValueError(
                f"{where}.chunks - covered is {spec.chunks - spec.covered}; a ring over {self.ranks} ranks needs a "
                f"multiple of {self.ranks}"
            )

    def check_turns(self, where: str, selector: ScheduleSelector) -> None:
        """Checks the schedule that a selector runs for a late rank, which may be any rank.

        Raises:
          ValueError: the schedule is not for one late rank, its late rank is not "any", or there are too many ranks.
        """
        if not isinstance(selector.late, Broadcast | StragglerSpec | Hybrid | DirectJoin | LateJoin):
            raise ValueError(f"{where}.late is a {selector.late.kind} schedule, which is not for one late rank")
        if selector.late.late != ANY_RANK:
            raise ValueError(f'{where}.late.late is "{selector.late.late}"; the selector\'s rank is "{ANY_RANK}"')
        if self.ranks > MAX_TURNS:
            raise ValueError(f'{where}.rank is "{ANY_RANK}", which is allowed for at most {MAX_TURNS} ranks')
        self._replace(roles={**self.roles, ANY_RANK: 0}).check(f"{where}.late", selector.late)

    def _check_transfers(self, where: str, spec: Transfers) -> None:
        solved = self.network.schedules if self.network else ()
        if spec.index >= len(solved):
            raise ValueError(f"{where}.index is {spec.index}; network has {len(solved)} schedules")
        chosen, late = solved[spec.index], self.roles[spec.late]
        if chosen.chunks != spec.chunks:
            raise ValueError(f"{where}.chunks is {spec.chunks}; network.schedules[{spec.index}] has {chosen.chunks}")
        if chosen.late != late:
            raise ValueError(
                f"roles.{spec.late} is {late}, but network.schedules[{spec.index}], which {where} runs, was solved for "
                f"late rank {chosen.late}; plan again from a profile in which rank {late} is late"
            )
        try:
            build_solved(chosen, self.ranks)
        except ValueError as error:
            raise ValueError(f"network.schedules[{spec.index}]: {error}") from None
