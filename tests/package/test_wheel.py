"""What a wheel would hold: its metadata, and a core that asks little of the machine it comes to."""

from __future__ import annotations

import email
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import jaxcomm

ROOT = Path(__file__).parents[2]


def test_metadata(tmp_path: Path) -> None:
    pytest.importorskip("scikit_build_core", reason="the package that builds wheels")
    code = f"from scikit_build_core.build import prepare_metadata_for_build_wheel as made; made({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120, capture_output=True)
    [folder] = tmp_path.iterdir()
    found = email.message_from_string((folder / "METADATA").read_text())
    assert (found["Name"], found["Version"]) == ("jaxcomm", jaxcomm.__version__)
    assert (found["License-Expression"], found["License-File"]) == ("Apache-2.0", "LICENSE")
    assert found["Author"] == "The jaxcomm developers" and found["Keywords"]
    assert "Typing :: Typed" in found.get_all("Classifier")
    assert found.get_payload().startswith("# jaxcomm\n")
    assert "jaxcomm = jaxcomm.cli:main" in (folder / "entry_points.txt").read_text().replace("=", " = ").replace(
        "  ", " "
    )
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text()


def test_the_core_brings_its_cxx_runtime() -> None:
    if shutil.which("readelf") is None:
        pytest.skip("no readelf, which comes with a compiler")
    core = Path(jaxcomm.__file__).parent / "ffi" / "libjaxcomm_cpu.so"
    found = subprocess.run(["readelf", "--dynamic", core], capture_output=True, text=True, check=True)
    assert "libc.so.6" in found.stdout and "libstdc++" not in found.stdout
