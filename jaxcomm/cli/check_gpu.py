"""The GPU side of `jaxcomm check`: its sections, and the certificate, which is written after each section."""

from __future__ import annotations

from typing import Any

from jaxcomm import files
from jaxcomm.environment import CERTIFICATE
from jaxcomm.errors import JaxcommError
from jaxcomm.gpu import certificate, core
from jaxcomm.gpu.checks import sections
from jaxcomm.gpu.checks.sections import BUDGET, Result

SECTIONS = {name: section.title for name, section in sections.ALL.items()}
_USES = {
    "process": ("of one process", "the fused kernel's"),
    "nccl": ("of several processes", "NCCL's sends and receives where a plan has a schedule, else jax.lax's"),
}


def why_off() -> str | None:
    """The reason why no section can run here, with the cure."""
    off = sections.machine().off
    if off is None:
        return None
    cure = core.cure(off, "run this on a machine with one")
    return f"there is no GPU to check: {off}.\n  Cure: {cure}; `jaxcomm check --cpu` needs no GPU."


def lacks(name: str) -> str | None:
    """The reason why a section would be left out."""
    return sections.machine().off or sections.lacks(sections.ALL[name])


def known() -> str:
    """The results of earlier runs on this machine."""
    return f"Before this run:\n{summary()}"


def run(name: str, elapsed: float) -> Result:
    """Runs one section. Earlier sections have used `elapsed` seconds of the time budget."""
    return sections.run(name, BUDGET - elapsed)


def keep(results: dict[str, Result]) -> None:
    """Writes these results into the certificate. The results of other sections on this machine stay in the file.

    Raises:
      JaxcommError: the file cannot be written.
    """
    made_for, path = sections.machine().made_for, certificate.path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JaxcommError(
            f"{path.parent} cannot be made: {error.strerror}.\n  Cure: set {CERTIFICATE} to another file."
        ) from None
    files.write(path, certificate.content(made_for, {**certificate.sections_for(made_for), **results}))


def about() -> dict[str, Any]:
    """The certificate's path, and the machine for which the certificate is made."""
    return {"certificate": str(certificate.path()), "made_for": sections.machine().made_for}


def summary() -> str:
    """Says which implementation of psum over GPUs is used from now on."""
    shown = certificate.sections_for(sections.machine().made_for)
    lines = []
    for use, (words, ours) in _USES.items():
        missing = certificate.missing_of(use, shown)
        lines.append(f"psum over GPUs {words}: " + (f"jax.lax's ({missing})" if missing else ours))
    return "\n".join([*lines, f"Certificate: {certificate.path()}"])
