"""Prints the packages that pyproject.toml names, one per line: jaxcomm's own, and those of the given extras.

python tools/requirements.py train dev
python tools/requirements.py --only cuda13-build
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
OWN = f"{PROJECT['name']}["


def packages(extras: Sequence[str]) -> Iterator[str]:
    """Yields the packages of the extras, and those of the jaxcomm extras that these include."""
    for extra in extras:
        for each in PROJECT["optional-dependencies"][extra]:
            if each.startswith(OWN):
                yield from packages(each.removeprefix(OWN).removesuffix("]").split(","))
            else:
                yield each


if __name__ == "__main__":
    words = sys.argv[1:]
    own = [] if words[:1] == ["--only"] else PROJECT["dependencies"]
    print(*dict.fromkeys([*own, *packages(words[1:] if words[:1] == ["--only"] else words)]), sep="\n")
