"""Writes the SBOM of a release (CycloneDX): the packages of an installation, and the code compiled into the wheels.

    python tools/sbom.py build/released/3.11-whl/bin/python build/sbom.cdx.json

cyclonedx-py lists the packages. It cannot see the code inside the core: zig's libc++, and XLA's headers of jaxlib.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator


def main(installed: str, target: Path) -> None:
    """Lists the packages of the Python `installed`; writes `target`."""
    command = [Path(sys.executable).with_name("cyclonedx-py"), "environment", "--pyproject", "pyproject.toml"]
    bom = json.loads(subprocess.check_output([*command, "--output-reproducible", "--spec-version", "1.6", installed]))
    compiled = [
        {"name": "libc++", "version": f"zig {version('ziglang')}", "licence": "Apache-2.0 WITH LLVM-exception"},
        {"name": "xla-ffi-headers", "version": f"jaxlib {version('jaxlib')}", "licence": "Apache-2.0"},
    ]
    for each in compiled:
        expression = {"expression": each.pop("licence")}
        bom["components"].append({"type": "library", "bom-ref": each["name"], **each, "licenses": [expression]})
    bom["metadata"]["component"]["version"] = version("jaxcomm")  # which pyproject.toml leaves to the build
    [ours] = [each for each in bom["dependencies"] if each["ref"] == bom["metadata"]["component"]["bom-ref"]]
    ours.setdefault("dependsOn", []).extend(each["name"] for each in compiled)
    text = json.dumps(bom, indent=2) + "\n"
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if error:
        sys.exit(f"{target}: not valid CycloneDX: {error}")
    target.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
