"""The notebooks: each runs from its first to its last cell, and what is kept of it is true to its text, and small."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import jupytext
import nbformat
import pytest

from tests.quick_compilation import xla_flag

ROOT = Path(__file__).parents[2]
TEXTS = sorted((ROOT / "notebooks").glob("[0-9]*.md"))
MOST_BYTES = 200_000
A_MACHINES_PATH = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|usr|opt|var|Users|content)/|[A-Z]:\\|-packages/")

# Changes that make notebooks short; all else is run as it stands there.
SHORTER = {
    "01_profile_and_plan": {
        "SIZE = 16 * 2**20": "SIZE = 2**20",
        "measure_devices(8, ": "measure_devices(8, (2**12, 2**16, SIZE), ",
        "range(21)": "range(3)",
    },
    "02_straggler_aware_allreduce": {
        "SIZE = 16 * 2**20": "SIZE = 2**20",
        "measure_devices(RANKS, ": "measure_devices(RANKS, (2**12, 2**16, SIZE), ",
        "--sizes 16MiB": "--sizes 1MiB",
    },
    "03_divide_and_shuffle": {"STEPS, BATCH, SWA_RATE = 300": "STEPS, BATCH, SWA_RATE = 30", "range(3)": "range(1)"},
    "05_importance_masks_and_drops": {"STEPS, BATCH = 150": "STEPS, BATCH = 20", "range(3)": "range(1)"},
    "06_without_changing_a_line": {"STEPS, WIDTH = 100, 256": "STEPS, WIDTH = 10, 64"},
}
INSTALL = """import importlib.util

if importlib.util.find_spec("jaxcomm") is None:
    !pip install --quiet "jaxcomm[all]\""""
# As in conftest.py.
COMPILED_SOONER = {"device_count=8": f"device_count=8 {xla_flag()}".strip()}

each_notebook = pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """tools/notebooks.py, which writes the notebooks, too."""
    spec = importlib.util.spec_from_file_location("notebooks_tool", ROOT / "tools" / "notebooks.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kept(text: Path) -> nbformat.NotebookNode:
    return nbformat.read(text.with_suffix(".ipynb"), nbformat.NO_CONVERT)


def code(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(notebook: nbformat.NotebookNode) -> list[list[Any]]:
    """The outputs of each cell."""
    return [
        [output.get("name") or sorted(output.get("data", {})) for output in cell.outputs] for cell in code(notebook)
    ]


def test_they_are_all_here() -> None:
    assert [path.name[:2] for path in TEXTS] == ["01", "02", "03", "04", "05", "06"]
    assert {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} == {path.stem for path in TEXTS}
    listed = (ROOT / "notebooks" / "README.md").read_text()
    assert all(f"]({path.stem}.ipynb)" in listed for path in TEXTS)


def short(text: Path, folder: Path) -> Path:
    """A copy of the notebook, in the folder, with less to measure and compile, and fewer steps and seeds."""
    words = text.read_text()
    for printed, shorter in (SHORTER.get(text.stem, {}) | COMPILED_SOONER).items():
        assert words.count(printed) == 1, f"{text.name}: {printed}"
        words = words.replace(printed, shorter)
    copy = folder / text.name
    copy.write_text(words)
    return copy


@pytest.fixture(scope="module")
def executed(tool: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Path, Future[Any]]]:
    """Each by its text, run in processes of their own, two at a time. They use this checkout, installed or not."""
    programs = tmp_path_factory.mktemp("programs")
    (programs / "jaxcomm").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m jaxcomm.cli "$@"\n')
    (programs / "jaxcomm").chmod(0o755)

    def execute(text: Path, folder: Path) -> nbformat.NotebookNode:
        checkout = {"PYTHONPATH": str(ROOT), "PATH": os.pathsep.join([str(programs), os.environ["PATH"]])}
        quick = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # as in conftest.py
        return tool.execute(short(text, folder), folder, Path(sys.executable), **checkout, **quick)

    with ThreadPoolExecutor(2) as pool:
        yield {text: pool.submit(execute, text, tmp_path_factory.mktemp(text.stem)) for text in TEXTS}


@pytest.mark.slow
@each_notebook
def test_every_cell_runs(executed: dict[Path, Future[Any]], text: Path) -> None:
    found = executed[text].result()
    assert all(cell.execution_count for cell in code(found))
    assert "stderr" not in str(kinds(found)), found
    assert kinds(found) == kinds(kept(text)), "its outputs are of another text; run `make notebooks`"


@each_notebook
def test_both_files_hold_the_same(text: Path) -> None:
    assert jupytext.writes(kept(text), fmt="md:myst") == text.read_text(), "run `make notebooks`"


@each_notebook
def test_the_first_code_cell_sets_up_jax(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = code(kept(text))[0].source
    assert "import jax" not in first
    for name in ("XLA_FLAGS", "PJRT_NPROC", "JAX_PLATFORMS"):
        monkeypatch.setenv(name, "")
    exec(first, {})
    devices = int(os.environ["XLA_FLAGS"].removeprefix("--xla_force_host_platform_device_count="))
    assert devices == 8
    assert int(os.environ["PJRT_NPROC"]) >= 2 * devices


@each_notebook
def test_what_is_kept_is_small_and_of_no_machine(text: Path) -> None:
    path = text.with_suffix(".ipynb")
    assert path.stat().st_size < MOST_BYTES
    outputs = "\n".join(str(cell.outputs) for cell in code(kept(text)))
    pictureless = re.sub(r"'image/png': '[^']*'", "", outputs)
    assert not A_MACHINES_PATH.search(pictureless)


@each_notebook
def test_links_lead_somewhere(text: Path) -> None:
    colab, *links = re.findall(r"\]\(([^)]+)\)", text.read_text())
    assert colab == "https://colab.research.google.com/"
    for link in links:  # all others within the repository, which may be anywhere
        assert (text.parent / link).is_file(), link


@each_notebook
def test_the_second_code_cell_installs_jaxcomm_if_it_is_missing(text: Path) -> None:
    second = code(kept(text))[1]
    assert second.source == INSTALL
    assert not second.outputs
