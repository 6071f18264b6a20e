"""A plan that has decided all of which the guides and the docstrings speak."""

from __future__ import annotations

from pathlib import Path

from jaxcomm import plan, planner, profile
from jaxcomm.profile import Bucket, Layer, Link, Profile, Provenance, Rack, Tolerance


def write_plan(folder: Path) -> None:
    """Writes a plan.json of eight ranks into a folder, and its profile.json."""
    sizes = {"front": 64 * 64 * 4, "back": 64 * 4}
    measured = Profile(
        ranks=8,
        link=Link(alpha_s=1e-6, beta_s_per_byte=1e-9, source="a test"),
        arrivals=[[0.02 * (rank == 3) for rank in range(8)]] * 4,
        buckets=[Bucket(name=name, bytes=size, ready_s=1e-3) for name, size in sizes.items()],
        racks=[Rack(name=str(i), ranks=[*range(4 * i, 4 * i + 4)], uplink=4.0) for i in range(2)],
        tolerance=Tolerance(layers=[Layer(name=name, bytes=size) for name, size in sizes.items()], bound=0.1),
        provenance=Provenance(source="a test", tool="pytest"),
    )
    profile.save(measured, folder / "profile.json")
    plan.save(planner.plan(measured, time_limit=0.05), folder / "plan.json")
