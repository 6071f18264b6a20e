"""The last steps of commands that make a profile."""

from __future__ import annotations

from argparse import Namespace

from jaxcomm import profile
from jaxcomm.cli.common import output
from jaxcomm.profile import Profile
from jaxcomm.report.profile_summary import summary


def finish(found: Profile, out: str, args: Namespace) -> None:
    """Writes the profile to `out` unless this is a dry run, and prints the profile or its summary."""
    if not args.dry_run:
        profile.save(found, out)
    if args.json:
        output.print_json("profile", {"profile": found.model_dump()})
        return
    print(summary(found))
    written = f"Profile: {out}; next: jaxcomm plan {out}"
    print("\nNothing was written (--dry-run)." if args.dry_run else f"\n{written}")
