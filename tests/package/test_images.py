"""The Dockerfiles: they copy files of the repository that the build context has, and the images run without root."""

from __future__ import annotations

import io
import json
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILES = (ROOT / "Dockerfile", ROOT / ".devcontainer" / "Dockerfile")


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    parser = pytest.importorskip("dockerfile_parse").DockerfileParser(fileobj=io.BytesIO(dockerfile.read_bytes()))
    return [(each["instruction"], each["value"]) for each in parser.structure if each["instruction"] != "COMMENT"]


def copied() -> list[str]:
    """The files and folders of the repository that the image is built from."""
    copies = [value.split() for name, value in instructions(ROOT / "Dockerfile") if name == "COPY"]
    return [source for words in copies if not words[0].startswith("--from=") for source in words[:-1]]


def test_the_build_context_is_what_the_image_copies() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "*"  # after a comment
    assert sorted(copied()) == sorted(line[1:] for line in ignored if line.startswith("!"))
    assert all((ROOT / source).exists() for source in copied())


def test_the_image_is_built_from_all_that_the_build_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    readme = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["fragments"]
    named = {each["path"] for each in readme if "path" in each}
    named |= {*project["project"]["license-files"], *project["tool"]["scikit-build"]["wheel"]["packages"]}
    included = re.findall(r"^\s*include\((.+\.cmake)\)", (ROOT / "CMakeLists.txt").read_text(), re.M)
    assert named and included
    assert named | {*included} <= {*copied()}


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_images_run_without_root(dockerfile: Path) -> None:
    found = instructions(dockerfile)
    last_stage = max(index for index, (name, _) in enumerate(found) if name == "FROM")
    [user] = [value for name, value in found[last_stage:] if name == "USER"]
    created = next(value for name, value in found[last_stage:] if name == "RUN" and "useradd" in value)
    assert user != "root" and re.search(rf"useradd .*\b{user}\b", created)


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_images_keep_no_package_lists(dockerfile: Path) -> None:
    runs = [value for name, value in instructions(dockerfile) if name == "RUN" and "apt-get install" in value]
    assert runs
    for each in runs:
        assert "apt-get update" in each and "--no-install-recommends" in each and "rm -rf /var/lib/apt/lists/*" in each


def test_the_development_container_builds_its_dockerfile() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert (ROOT / ".devcontainer" / container["build"]["dockerfile"]).is_file()
    assert ("USER", container["remoteUser"]) in instructions(DOCKERFILES[1])
