"""Executes the notebooks: every notebooks/NN_name.md becomes NN_name.ipynb, with its outputs.

    .venv/bin/python tools/notebooks.py           all of them
    .venv/bin/python tools/notebooks.py 03 05     those whose names start with 03 or 05

Edit the .md files. Each notebook runs in a virtual environment of its own, which has nothing but IPython's kernel: its
cell installs jaxcomm from the wheel in build/notebooks, and the other packages from the package index.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jupytext
import nbformat
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
WHEELS = ROOT / "build" / "notebooks"
CELL_TIMEOUT_S = 600  # the cell that installs jaxcomm downloads 300 MB


def main(names: list[str]) -> None:
    """Executes the notebooks whose names start with one of `names`, or all, and writes each beside its text."""
    for source in sorted(FOLDER.glob("[0-9]*.md")):
        if not names or source.name.startswith(tuple(names)):
            start = time.perf_counter()
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                python = _empty_environment(folder / "venv")
                links = f"{WHEELS} {os.environ.get('PIP_FIND_LINKS', '')}"
                notebook = execute(source, folder, python, PIP_FIND_LINKS=links, PIP_DISABLE_PIP_VERSION_CHECK="1")
                nbformat.write(notebook, source.with_suffix(".ipynb"))
            print(f"{source.stem}: {time.perf_counter() - start:.1f} s")


def execute(source: Path, folder: Path, python: Path, **environment: str) -> nbformat.NotebookNode:
    """Returns the notebook with its outputs.

    Args:
      source: the notebook, as .md or .ipynb.
      folder: the folder in which its cells run and write.
      python: the Python that runs its cells.
      environment: variables to set in addition to a new user's.

    Raises:
      nbclient.exceptions.CellExecutionError: a cell failed.
    """
    notebook = jupytext.read(source)
    notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}  # without Python's version
    for index, cell in enumerate(notebook.cells):
        cell.id = f"cell-{index}"  # otherwise random
    language = notebook.metadata["language_info"]
    client = NotebookClient(
        notebook,
        km=_kernel(folder / "kernels", python),
        timeout=CELL_TIMEOUT_S,
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--log-level=ERROR"],  # kernels warn that they listen on this machine's loopback
    )
    home = {
        "HOME": str(folder),
        "PATH": os.pathsep.join([str(python.parent), os.environ["PATH"]]),
        "IPYTHONDIR": str(folder / "ipython"),
    }
    client.execute(env=home | environment)
    for cell in notebook.cells:
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if not _is_progress(output)]
    notebook.metadata["language_info"] = language
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if picture := output.get("data", {}).get("image/png"):
                output["data"]["image/png"] = _few_colours(picture)
    return notebook


def _is_progress(output: nbformat.NotebookNode) -> bool:
    """Whether an output has only the lines of commands that took more than two seconds, which another run may lack."""
    if output.get("name") != "stderr":
        return False
    return all(re.fullmatch(r".* …|.*: \d+\.\d s", line) for line in output["text"].splitlines())


def _empty_environment(folder: Path) -> Path:
    """Makes a virtual environment with IPython's kernel and pip, and returns its Python."""
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "ipykernel"], check=True)
    return python


def _kernel(folder: Path, python: Path) -> AsyncKernelManager:
    """The notebooks' kernel, python3, run by this Python; its description is written to the folder."""
    (folder / "python3").mkdir(parents=True)
    words = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    described = {"argv": words, "display_name": "Python 3", "language": "python"}
    (folder / "python3" / "kernel.json").write_text(json.dumps(described))
    found = KernelSpecManager(kernel_dirs=[str(folder)], ensure_native_kernel=False)
    return AsyncKernelManager(kernel_name="python3", kernel_spec_manager=found)


def _few_colours(picture: str) -> str:
    """Reduces a base64 PNG to a palette, a third of the size, because the repository keeps notebooks with outputs."""
    small = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
        image.convert("RGB").quantize(64).save(small, "PNG", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


if __name__ == "__main__":
    main(sys.argv[1:])
