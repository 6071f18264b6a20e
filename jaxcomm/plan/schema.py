"""The plan: the schedules of allreduces of every size, as a frozen value that is always consistent.

Late ranks are named by role, and `roles` binds each role to a rank. If another rank becomes the straggler, the plan
need not be solved again.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self

import pydantic
from pydantic import Field, computed_field

from jaxcomm.files import Value, canonical
from jaxcomm.plan.byte_ranges import check_ranges
from jaxcomm.plan.drops import Drops
from jaxcomm.plan.executor_name import ExecutorName
from jaxcomm.plan.executors import Executors
from jaxcomm.plan.groups import Groups
from jaxcomm.plan.halves import HalfEntry, HalfSpec, check_half
from jaxcomm.plan.limits import LEAST_CHAINED, MAX_CHAINED, MAX_LISTED, MAX_SOLVED
from jaxcomm.plan.lost_rails import LostRails, check_lost_rails
from jaxcomm.plan.origin import Assumptions, PlanProvenance
from jaxcomm.plan.rails import Rails
from jaxcomm.plan.solved import SolvedNetwork
from jaxcomm.plan.spec_check import SpecCheck
from jaxcomm.plan.specs import build, build_half
from jaxcomm.plan.step import Step
from jaxcomm.plan.transport import Transport
from jaxcomm.plan.values import (
    ANY_RANK,
    Chain,
    Entry,
    Hierarchical,
    HierarchicalHalves,
    Hosts,
    Matches,
    Nccl,
    Rank,
    RoleName,
    Rotation,
    ScheduleSelector,
    Sha256,
    Spec,
)
from jaxcomm.profile.cluster import Cluster
from jaxcomm.schedules import Schedule, Template
from jaxcomm.schedules.halves import Half

FORMAT: Final = "jaxcomm-plan"
VERSION: Final = 1


class Plan(Value):
    """A plan file's content. Make one with `jaxcomm.planner.plan`, read one with `jaxcomm.plan.load`.

    `hosts[r]` is the name of rank r's host in the profile; only reports use these names. `halves` has the schedules of
    reduce-scatters and all-gathers (null: they run as without a plan). `lost_rails` has the schedules of calls while a
    host lacks a rail.
    """

    format: Literal["jaxcomm-plan"] = FORMAT
    version: Literal[1] = VERSION
    matches: Matches
    roles: Annotated[dict[RoleName, Rank], Field(default_factory=dict, max_length=64)]
    hosts: Hosts | None = None
    template: Rotation | None = None
    network: SolvedNetwork | None = None
    executors: Executors | None = None
    collectives: Annotated[tuple[Entry, ...], Field(fail_fast=True, min_length=1, max_length=4096)]
    halves: Annotated[tuple[HalfEntry, ...], Field(fail_fast=True, min_length=1, max_length=4096)] | None = None
    assumptions: Assumptions
    step: Step | None = None
    rails: Rails | None = None
    lost_rails: LostRails = ()
    groups: Groups | None = None
    drops: Drops | None = None
    transport: Transport | None = None
    provenance: PlanProvenance

    @property
    def ranks(self) -> int:
        """The number of ranks that the plan is for."""
        return self.matches.ranks

    @property
    def links(self) -> Cluster:
        """The links that the predictions assume."""
        given, topology = self.assumptions, self.network.topology if self.network else None
        return Cluster(given.alpha_s, given.beta_s_per_byte, topology, incast=given.incast or 1.0)

    @computed_field  # type: ignore[prop-decorator]  # mypy knows no decorated properties; pydantic asks for this order
    @cached_property
    def hash(self) -> Sha256:
        """Hex SHA-256 of the canonical bytes. Two plans have equal hashes if and only if they are equal."""
        return hashlib.sha256(self.canonical_bytes()).hexdigest()

    def canonical_bytes(self) -> bytes:
        """The bytes that `hash` covers: JSON in UTF-8, sorted keys, no spaces, without `hash`."""
        return canonical(self.model_dump(mode="json", exclude={"hash"}))

    def schedule_for(self, nbytes: int, dtype: str | None = None) -> Schedule | None:
        """The schedule of an allreduce, or None if the plan is not for this element type.

        If the plan chose NCCL's own allreduce for CUDA devices, this schedule is for other devices (see
        `nccl_seconds`).

        Args:
          nbytes: bytes of one rank's buffer.
          dtype: JAX name of the element type; None ignores the type.
        """
        return self.schedule_of(self.collectives[self.index_for(nbytes)].schedule) if self._is_for(dtype) else None

    def half_for(self, collective: Half, nbytes: int, dtype: str | None = None) -> Schedule | None:
        """The schedule of a reduce-scatter or an all-gather, or None if the plan has no such schedule.

        Args:
          collective: "reduce_scatter" or "all_gather".
          nbytes: bytes of the whole buffer: a reduce-scatter's operand, or an all-gather's result.
          dtype: as in `schedule_for`.
        """
        if not self.halves or not self._is_for(dtype):
            return None
        at = bisect.bisect_right(self.halves, nbytes, key=lambda entry: entry.min_bytes) - 1
        return self.half_of(collective, self.halves[at].schedule)

    def half_of(self, collective: Half, spec: HalfSpec) -> Schedule:
        """The schedule that a spec of `halves` stands for."""
        if (collective, spec) not in self._made_halves:
            topology = self.network.topology if self.network else None
            self._made_halves[collective, spec] = build_half(spec, collective, self.ranks, topology)
        return self._made_halves[collective, spec]

    def executor_for(self, half: bool, nbytes: int) -> ExecutorName | Literal["lax"] | None:
        """The executor that the plan's entry has for calls of this size.

        "lax" stands for `jax.lax`'s own collective, and None for the platform's own executor.

        Args:
          half: whether the call is a reduce-scatter or an all-gather.
          nbytes: as in `schedule_for`, or in `half_for`.
        """
        entries = (self.halves or ()) if half else self.collectives
        at = bisect.bisect_right(entries, nbytes, key=lambda entry: entry.min_bytes) - 1
        if not entries:
            return None
        return "lax" if entries[at].schedule.kind == "lax" else entries[at].executor

    def nccl_seconds(self, nbytes: int) -> float | None:
        """The predicted seconds of NCCL's allreduce if the plan runs it for calls of this size, else None."""
        spec = self.collectives[self.index_for(nbytes)].schedule
        return self.executors.nccl_seconds(nbytes) if self.executors and isinstance(spec, Nccl) else None

    def index_for(self, nbytes: int) -> int:
        """The index of the entry of `collectives` that calls of this size follow."""
        return bisect.bisect_right(self.collectives, nbytes, key=lambda entry: entry.min_bytes) - 1

    def schedule_of(self, spec: Spec, late: int | None = None) -> Schedule:
        """The schedule that a spec of `collectives` stands for, with roles bound. It is built on first use.

        Args:
          spec: the spec.
          late: the rank that the role "any" stands for, if the spec has this role; else None.
        """
        if (spec, late) not in self._made:
            network = self.network
            given = (network.schedules, network.topology) if network else ((), None)
            roles = self.roles if late is None else {**self.roles, ANY_RANK: late}
            self._made[spec, late] = build(spec, self.ranks, roles, self.rotation, *given)
        return self._made[spec, late]

    def selector_for(self, nbytes: int, dtype: str | None = None) -> ScheduleSelector | None:
        """The selector of calls of this size, or None if they have a fixed schedule. Arguments as in `schedule_for`."""
        return self.collectives[self.index_for(nbytes)].selector if self._is_for(dtype) else None

    def schedules_of(self, selector: ScheduleSelector) -> tuple[Schedule, ...]:
        """The schedules of a selector: first the one without a late rank, then those for each rank that may be late."""
        late = range(self.ranks) if selector.by_turns else [None]
        return (self.schedule_of(selector.early), *(self.schedule_of(selector.late, rank) for rank in late))

    def lost_rails_for(self, nbytes: int, dtype: str | None = None) -> LostRails:
        """The lost rails that have a schedule for calls of this size; empty if the calls have a selector.

        The arguments are as in `schedule_for`.
        """
        is_for = self._is_for(dtype) and not self.selector_for(nbytes, dtype)
        return tuple(each for each in self.lost_rails if is_for and nbytes >= each.ranges[0].min_bytes)

    def all_reduces(self) -> Iterator[tuple[int, str, Schedule]]:
        """All schedules that calls of `collectives` can run, each with its entry's index and its place in the entry."""
        for i, entry in enumerate(self.collectives):
            yield i, "schedule", self.schedule_of(entry.schedule)
            for j, schedule in enumerate(self.schedules_of(entry.selector) if entry.selector else ()):
                yield i, "selector.late" if j else "selector.early", schedule

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """The schedule of every entry of `collectives`, with roles bound."""
        return tuple(self.schedule_of(entry.schedule) for entry in self.collectives)

    @cached_property
    def _made(self) -> dict[tuple[Spec, int | None], Schedule]:
        return {}

    @cached_property
    def _made_halves(self) -> dict[tuple[Half, HalfSpec], Schedule]:
        return {}

    def _is_for(self, dtype: str | None) -> bool:
        return self.matches.dtypes is None or dtype is None or dtype in self.matches.dtypes

    @cached_property
    def rotation(self) -> Template | None:
        """The template in the form that the schedules' constructors take.

        Raises:
          PlanError: the template's tables have the wrong length, or values out of bounds.
        """
        return Template.from_json(self.template.model_dump(mode="json")) if self.template else None

    @pydantic.model_validator(mode="after")
    def _covers_every_size(self) -> Self:
        check_ranges("collectives", self.collectives)
        check_ranges("halves", self.halves or ())
        return self

    @pydantic.model_validator(mode="after")
    def _fits_the_ranks(self) -> Self:
        if ANY_RANK in self.roles:
            raise ValueError(f'roles binds "{ANY_RANK}", which stands for whichever rank arrives last')
        for name, rank in self.roles.items():
            if rank >= self.ranks:
                raise ValueError(f"roles.{name} is {rank}; with {self.ranks} ranks it must be in [0, {self.ranks - 1}]")
        if self.hosts is not None and len(self.hosts) != self.ranks:
            raise ValueError(f"hosts has {len(self.hosts)} names; matches.ranks is {self.ranks}")
        if self.template and self.template.ranks != self.ranks:
            raise ValueError(f"template.ranks is {self.template.ranks}; matches.ranks is {self.ranks}")
        if self.network and len(self.network.topology.hosts) != self.ranks:
            raise ValueError(
                f"network.topology.hosts has {len(self.network.topology.hosts)} entries; matches.ranks is {self.ranks}"
            )
        solved = self.network.schedules if self.network else ()
        if (found := sum(self.ranks * each.chunks + each.numbers for each in solved)) > MAX_SOLVED:
            raise ValueError(
                f"network.schedules have {found} ranks · chunks and numbers of moves; {MAX_SOLVED} can be proved"
            )
        first: dict[Spec, str] = {}
        specs = SpecCheck(self.ranks, self.roles, self.network, self.executors, self.template is not None)
        for i, entry in enumerate(self.collectives):
            if entry.selector and entry.selector.by_turns:
                specs.check_turns(f"collectives[{i}].selector", entry.selector)
            elif entry.selector and entry.selector.rank not in self.roles:
                raise ValueError(
                    f'collectives[{i}].selector.rank is "{entry.selector.rank}", which roles does not bind'
                )
            for name, spec in entry.specs.items():
                if not (entry.selector and entry.selector.by_turns and name == "selector.late"):
                    first.setdefault(spec, f"collectives[{i}].{name}")
        for spec, where in first.items():
            specs.check(where, spec)
        halves = [entry.schedule for entry in self.halves or ()]
        for i, half in enumerate(halves):
            check_half(f"halves[{i}].schedule", half, self.ranks, self.network.topology if self.network else None)
        listed = sum(self.ranks * spec.chunks for spec in {*first, *halves} if isinstance(spec, Hierarchical))
        listed += check_lost_rails(self.lost_rails, specs)
        listed += self.ranks**2 * any(isinstance(spec, HierarchicalHalves) for spec in first)
        if listed > MAX_LISTED:
            raise ValueError(
                f"collectives and lost_rails have hierarchical schedules of {listed} ranks · chunks together; at most "
                f"{MAX_LISTED} can be built"
            )
        chains = {spec.least(self.ranks) for spec in first if isinstance(spec, Chain)}
        chained = sum(max(self.ranks * spec.chunks, LEAST_CHAINED) for spec in chains)
        if chained > MAX_CHAINED:
            raise ValueError(
                f"collectives have {len(chains)} different chains, which count as {chained} ranks · chunks; "
                f"{MAX_CHAINED} can be proved"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _step_runs_the_entries(self) -> Self:
        for i, bucket in enumerate(self.step.planned if self.step else ()):
            index = self.index_for(bucket.bytes)
            if bucket.schedule != self.collectives[index].schedule:
                raise ValueError(
                    f"step.planned[{i}].schedule differs from collectives[{index}].schedule, which calls of its "
                    f"{bucket.bytes} bytes run"
                )
        decided = ["drops"] * bool(self.drops) + ["groups"] * bool(self.groups)
        may = [decided, [*decided, "drops_and_groups"]][len(decided) > 1]
        accepted = [each.relaxation for each in self.step.accepting] if self.step else []
        if accepted and accepted != may:
            raise ValueError(
                f"step.accepting is for {', '.join(accepted)}; it must be for {', '.join(may) or 'nothing'}"
            )
        return self


def json_schema() -> dict[str, Any]:
    """The JSON Schema of plan.json, for editors and other programs.

    Example:
      >>> jaxcomm.plan.json_schema()["title"]
      'Plan'
    """
    return Plan.model_json_schema(mode="serialization")
