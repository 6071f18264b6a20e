"""Sphinx's settings, for `make docs`.

The source folder is the repository, not this folder, so that the notebooks and the Markdown files of other folders are
pages, too. Notebooks are shown with their stored outputs; nothing is executed, and nothing is downloaded.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import jaxcomm  # noqa: E402  # of this checkout

project = "jaxcomm"
release = version = jaxcomm.__version__
author = "The jaxcomm developers"
copyright = author

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "commands",  # of this folder
]
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "docs/reference/api/*.rst",  # made by autosummary, a page for each public name
    "notebooks/*.ipynb",
    "notebooks/README.md",
    "recipes/README.md",
    "benchmarks/**.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
]
exclude_patterns = [".*", "bazel-*", "build", "cc", "jaxcomm", "tests", "third_party"]  # not even looked into
nitpicky = True
nitpick_ignore_regex = [("py:class", r"(collections|jax|numpy|os|pathlib)\..*")]  # other packages' types
default_role = "code"  # docstrings write `name` for code
suppress_warnings = ["myst.header"]  # a table's page has no title

myst_enable_extensions = ["amsmath", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures stay short; docstrings say what arguments are
napoleon_numpy_docstring = False
templates_path = [str(ROOT / "docs" / "templates")]
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"  # text is output

html_theme = "sphinx_book_theme"
html_title = f"jaxcomm {release}"
html_theme_options = {
    "collapse_navbar": True,
    "navbar_persistent": [],  # the search field is beside the pages already
    "show_navbar_depth": 1,
    "use_download_button": False,
}
html_copy_source = False
html_extra_path = ["index.html"]  # leads to docs/


def setup(app: Any) -> None:
    """Connects what docstrings need beyond napoleon."""
    app.connect("autodoc-process-docstring", _prepare, priority=400)  # before napoleon
    app.connect("autodoc-skip-member", _skip)


def _prepare(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Marks what is indented after a colon as code, as docstrings here mean it."""
    for i in range(len(lines) - 2):
        indent = len(lines[i]) - len(lines[i].lstrip())
        code = not lines[i + 1].strip() and lines[i + 2].startswith(" " * (indent + 2))
        if code and re.search(r"[^:]:$", lines[i]):
            lines[i] += ":"
    if what == "property":
        lines[:0] = ["..", ""]  # an empty comment; else what stands before a colon in the first line counts as the type


def _skip(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leaves out what named tuples and pydantic's models have of themselves."""
    made = name == "model_config" or (getattr(obj, "__doc__", None) or "").startswith("Alias for field number")
    return True if made else None
