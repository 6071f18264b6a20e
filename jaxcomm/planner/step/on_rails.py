"""The options of a step's buckets on unlike rails: which schedule, on which rail alone, or on all of a split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, Self

from jaxcomm.plan.rails import Rails, Share
from jaxcomm.plan.values import Spec
from jaxcomm.planner.rails.link_times import RailLink, RailLinks, phases_on, rail_links
from jaxcomm.planner.schedules.setting import Setting
from jaxcomm.planner.step.jobs import Option, RailShare
from jaxcomm.profile import Profile, fit


class RailNetwork(NamedTuple):
    """The rails of a profile, as a step's buckets may use them. As buckets on other rails run meanwhile, every rail is
    as slow as its `slowdown` says."""

    setting: Setting
    names: tuple[str, ...]
    split: Rails
    links: RailLinks

    @classmethod
    def of(cls, profile: Profile, setting: Setting, split: Rails) -> Self:
        """The rails, each also alone with one channel."""
        alone = {
            Share(rail=rail.name, share=1.0): RailLink(link.alpha_s, link.beta_s_per_byte, rail.slowdown)
            for rail in profile.rails
            for link in [fit(rail.latency, "all_reduce", profile.ranks, f"rail {rail.name!r}")]
        }
        return cls(setting, tuple(rail.name for rail in profile.rails), split, {**alone, **rail_links(profile, split)})

    def options(self, spec: Spec, nbytes: int) -> list[Option]:
        """The schedule on each rail alone and, where buffers of this size are split, on that; the fastest first."""
        loads: list[tuple[Share, ...]] = [(Share(rail=name, share=1.0),) for name in self.names]
        if len(shares := self.split.split_for(nbytes)) > 1:
            loads.append(shares)
        return sorted((self._option(spec, each, nbytes) for each in loads), key=lambda option: max(option.after))

    def best(self) -> Setting:
        """A network that is at least as fast as all rails together, none slowed down: for a lower bound."""
        rates = [
            max(1 / link.beta_s_per_byte if link.beta_s_per_byte else float("inf") for link in links)
            for links in ([link for share, link in self.links.items() if share.rail == name] for name in self.names)
        ]
        alpha = min(link.alpha_s for link in self.links.values())
        links = replace(self.setting.links, alpha=alpha, beta=1 / sum(rates), topology=None)
        return replace(self.setting, links=links)

    def _option(self, spec: Spec, shares: tuple[Share, ...], nbytes: int) -> Option:
        setting = self.setting
        schedule = setting.schedule(spec)
        times: Mapping[str, tuple[float, float]] = {
            share.rail: phases_on(self.links, (share,), schedule, nbytes) for share in shares
        }
        slow = {share.rail: link.slowdown for share, link in self.links.items()}
        carried = {share.rail: share.share for share in shares}
        return Option(
            spec,
            tuple(slow[name] * times.get(name, (0.0, 0.0))[0] for name in self.names),
            tuple(slow[name] * times.get(name, (0.0, 0.0))[1] for name in self.names),
            tuple(RailShare(name, carried.get(name, 0.0)) for name in self.names),
            setting.late.stage(spec),
        )
