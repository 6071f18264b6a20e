"""A wheel's contents: its metadata, and a core that asks little of the machine it comes to."""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import jaxcomm

ROOT = Path(__file__).parents[2]
CORE = "ffi/libjaxcomm_cpu.so"
TESTBED = "testbed/libjaxcomm_testbed.so"


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
    page = found.get_payload()  # that PyPI shows, where a relative link leads nowhere
    assert page.startswith("# jaxcomm\n") and "img" not in page and not re.search(r"\]\((?!https?:)", page)
    assert "jaxcomm = jaxcomm.cli:main" in (folder / "entry_points.txt").read_text().replace("=", " = ").replace(
        "  ", " "
    )
    assert f"\nversion: {jaxcomm.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {jaxcomm.__version__}, " in (ROOT / "CHANGELOG.md").read_text()
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text()


def readelf(library: str, option: str) -> str:
    if shutil.which("readelf") is None:
        pytest.skip("no readelf, which comes with a compiler")
    path = Path(jaxcomm.__file__).parent / library
    return subprocess.run(["readelf", "--wide", option, path], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("library", [CORE, TESTBED])
def test_a_library_brings_its_cxx_runtime(library: str) -> None:
    found = readelf(library, "--dynamic")
    assert "libc.so.6" in found and "libstdc++" not in found


def test_only_the_testbed_library_has_the_packet_switch() -> None:
    functions = {library: re.findall(r"\bjaxcomm_\w+", readelf(library, "--dyn-syms")) for library in (CORE, TESTBED)}
    assert {name.removeprefix("jaxcomm_").rsplit("_", 1)[0] for name in functions[TESTBED]} >= {"packet_switch"}
    assert "jaxcomm_set_deadline" in functions[CORE] and not {*functions[CORE]} & {*functions[TESTBED]}
