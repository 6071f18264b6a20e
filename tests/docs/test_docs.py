"""The documentation: it is built without a warning, has every public name, and the commands that it shows work."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import tomllib
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import jaxcomm
from jaxcomm import cli, profile
from jaxcomm.cli import dispatch

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
WRITTEN = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "recipes/README.md"))]
COLUMNS = 88  # that fit beside the contents
PUBLIC = [
    "",
    "train",
    "nnx",
    "equinox",
    "schedules",
    "plan",
    "profile",
    "measure",
    "planner",
    "simulate",
    "plan.exporters",
]

each_text = pytest.mark.parametrize("text", WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))


def blocks(text: Path, *languages: str) -> list[str]:
    """The fenced code of these languages."""
    found, code, language = [], "", None
    for line in text.read_text().splitlines(keepends=True):
        if not line.startswith("```"):
            code += line
        elif language is None:
            code, language = "", line[3:].strip()
        else:
            found += [code] if language in languages else []
            language = None
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("sphinx_book_theme", "sphinx_copybutton"):
        pytest.importorskip(package, reason="the extra `docs` is not installed")
    folder = tmp_path_factory.mktemp("html")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-c", "docs", ".", str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.slow
def test_it_is_built_without_a_warning(built: Path) -> None:
    notebooks = (ROOT / "notebooks").glob("*.ipynb")
    pages = [*PAGES, *notebooks, *(ROOT / "benchmarks").rglob("*.md"), ROOT / "CONTRIBUTING.md"]
    for page in pages:
        assert (built / page.relative_to(ROOT)).with_suffix(".html").is_file(), page
    assert "docs/index.html" in (built / "index.html").read_text()


@pytest.mark.slow
def test_every_public_name_is_in_it(built: Path) -> None:
    inventory = (built / "objects.inv").read_bytes().split(b"\n", 4)[4]
    known = {line.split(" ", 1)[0] for line in zlib.decompress(inventory).decode().splitlines()}
    for package in PUBLIC:
        module = importlib.import_module(f"jaxcomm.{package}".rstrip("."))
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, type | type(blocks)):
                assert {f"{module.__name__}.{name}", f"{value.__module__}.{name}"} & known, name


@pytest.mark.slow
def test_commands_show_their_help(built: Path) -> None:
    page = (built / "docs" / "reference" / "commands.html").read_text()
    for name in dispatch.COMMANDS:
        assert f"usage: jaxcomm {name} [-h]" in page
        assert f'id="command-{name.replace(" ", "-")}"' in page


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """The folder of somebody who has done what the tutorial says, and what each of its commands printed."""
    folder = tmp_path_factory.mktemp("tutorial")
    for name, options in (("jaxcomm", "-m jaxcomm.cli"), ("python", "")):
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {options} "$@"\n')
        (folder / name).chmod(0o755)
    text = (DOCS / "tutorial.md").read_text()
    names = re.findall(r"Save this as `(\w+\.py)`", text)
    for name, code in zip(names, blocks(DOCS / "tutorial.md", "python"), strict=True):
        (folder / name).write_text(code)
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    printed = []
    shorter = {"jaxcomm profile": " --seconds 5", "jaxcomm plan": " --try-limit 5"}
    for command in "".join(blocks(DOCS / "tutorial.md", "bash")).splitlines():
        words = command + next((more for name, more in shorter.items() if command.startswith(name)), "")
        result = subprocess.run(
            shlex.split(words), cwd=folder, env=environment, capture_output=True, text=True, timeout=120
        )
        assert result.returncode == 0, f"{command}\n{result.stderr}"
        printed.append(result.stdout)
    yield folder, printed


@pytest.mark.slow
def test_the_tutorial_works(followed: tuple[Path, list[str]]) -> None:
    folder, printed = followed
    plan = jaxcomm.plan.load(folder / "plan.json")
    assert "plan direct: last by rank" in printed[0]
    assert f"plan {plan.hash[:8]}: last by rank" in printed[-1]
    assert (folder / "plan.svg").is_file()


def test_the_profile_written_by_hand_is_one(tmp_path: Path) -> None:
    (document,) = blocks(DOCS / "guides" / "profile.md", "json")
    (tmp_path / "profile.json").write_text(document)
    assert profile.load(tmp_path / "profile.json").ranks == json.loads(document)["ranks"]


@each_text
def test_python_is_python(text: Path) -> None:
    for code in blocks(text, "python"):
        compile(code, text.name, "exec")


@each_text
def test_code_is_not_wider_than_a_page(text: Path) -> None:
    found = re.findall(r"^ *```(.*)\n((?:.*\n)*?) *```$", text.read_text(), re.MULTILINE)
    lines = [line for language, code in found if language != "text" for line in code.splitlines()]  # text is output
    assert [line for line in lines if len(line) > COLUMNS] == []


@each_text
def test_commands_have_these_arguments(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = "".join(blocks(text, "bash", "")).replace("\\\n", "")
    lines = re.findall(r"^(?:\.venv/bin/)?jaxcomm (.+)$", commands, re.MULTILINE)
    for line in lines:
        words = shlex.split(line, comments=True)
        name = next(name for name in (" ".join(words[:2]), words[0]) if name in dispatch.COMMANDS)
        command = importlib.import_module("jaxcomm.cli." + name.replace(" ", "_").replace("-", "_"))
        monkeypatch.setattr(command, "run", lambda args: 0)
        assert cli.main(words) == 0, line


@each_text
def test_names_and_files_exist(text: Path) -> None:
    words = text.read_text()
    for name in {*re.findall(r"\bjaxcomm(?:\.[A-Za-z_]\w*)+", words)}:
        if not name.endswith((".py", ".json", ".log", ".md")):
            pkgutil.resolve_name(name)
    folders = "benchmarks|cc|docs|jaxcomm|notebooks|recipes|tests|tools"
    for path in {*re.findall(rf"`((?:{folders})/[\w./-]+)", words)}:
        if "NAME" not in path:
            assert (ROOT / path).exists(), path
    for link in {*re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", words)}:
        assert (text.parent / link).exists(), link


def test_every_environment_variable_has_its_row() -> None:
    page = (DOCS / "reference" / "environment.md").read_text()
    modules = (ROOT / "jaxcomm").rglob("*.py")
    named = {name for module in modules for name in re.findall(r"\bJAXCOMM_[A-Z_]+\b", module.read_text())}
    assert "JAXCOMM_DEADLINE_S" in named
    rows = "".join(line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `"))
    assert {name for name in named if f"`{name}`" not in rows} == set()


def test_the_readme_names_pages_by_their_titles() -> None:
    links = set(re.findall(r"\[([^\]]+)\]\(([^)#]+)\)", (ROOT / "README.md").read_text()))
    titles = {path: (ROOT / path).read_text().splitlines()[0].removeprefix("# ") for _, path in links}
    assert {(text, path) for text, path in links if text != titles[path]} == set()
    guides = {f"docs/guides/{page.name}" for page in (DOCS / "guides").glob("*.md")}
    assert guides - {*titles} == {"docs/guides/index.md"}


def test_every_place_has_the_same_versions() -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = document["project"]
    assert f"\nversion: {jaxcomm.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    (oldest,) = [re.search(r"jax>=([\d.]+)", each) for each in project["dependencies"] if each.startswith("jax>")]
    assert oldest
    assert f"jaxlib=={oldest[1]}" in document["build-system"]["requires"]
    assert f"the lowest supported JAX, {oldest[1]}." in (ROOT / "README.md").read_text()
    words = [sys.executable, ROOT / "tools" / "requirements.py"]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == project["dependencies"]
