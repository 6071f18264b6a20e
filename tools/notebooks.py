"""Executes the notebooks: every notebooks/NN_name.md becomes NN_name.ipynb, with its outputs.

    .venv/bin/python tools/notebooks.py           all of them
    .venv/bin/python tools/notebooks.py 03 05     those whose names start with 03 or 05

Edit the .md files. The cells run in the Python that runs this script.
"""

from __future__ import annotations

import base64
import io
import os
import sys
import tempfile
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
CELL_TIMEOUT_S = 90


def main(names: list[str]) -> None:
    """Executes the notebooks whose names start with one of `names`, or all, and writes each beside its text."""
    for source in sorted(FOLDER.glob("[0-9]*.md")):
        if not names or source.name.startswith(tuple(names)):
            start = time.perf_counter()
            with tempfile.TemporaryDirectory() as folder:
                nbformat.write(execute(source, Path(folder)), source.with_suffix(".ipynb"))
            print(f"{source.stem}: {time.perf_counter() - start:.1f} s")


def execute(source: Path, folder: Path, **environment: str) -> nbformat.NotebookNode:
    """Returns the notebook with its outputs.

    Args:
      source: the notebook, as .md or .ipynb.
      folder: the folder in which its cells run and write.
      environment: variables to set in addition to a new user's.

    Raises:
      nbclient.exceptions.CellExecutionError: a cell failed.
    """
    notebook = jupytext.read(source)
    notebook.metadata["language_info"] = {"name": "python"}  # without Python's version
    for index, cell in enumerate(notebook.cells):
        cell.id = f"cell-{index}"  # otherwise random
    language = notebook.metadata["language_info"]
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--log-level=ERROR"],  # kernels warn that they listen on this machine's loopback
    )
    client.execute(env=_environment(folder) | environment)
    notebook.metadata["language_info"] = language
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if picture := output.get("data", {}).get("image/png"):
                output["data"]["image/png"] = _few_colours(picture)
    return notebook


def _few_colours(picture: str) -> str:
    """Reduces a base64 PNG to a palette, a third of the size, because the repository keeps notebooks with outputs."""
    small = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
        image.convert("RGB").quantize(64).save(small, "PNG", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


def _environment(folder: Path) -> dict[str, str]:
    """Returns the environment of a new user; `jaxcomm` runs this checkout, installed or not."""
    programs = folder / "bin"
    programs.mkdir()
    program = programs / "jaxcomm"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m jaxcomm.cli "$@"\n')
    program.chmod(0o755)
    return {
        "HOME": str(folder),
        "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "IPYTHONDIR": str(folder / "ipython"),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
