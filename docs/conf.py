"""How Sphinx builds the documentation (`make docs`)."""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent / "examples")]

from pictures import draw_all  # noqa: E402  # needs the path above

project = "Recollect"
author = "The Recollect authors"
copyright = author
version = release = installed_version("recollect")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
default_role = "code"  # single backticks in docstrings mean code, as in Markdown

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False

myst_heading_anchors = 3  # links such as limiters.md#minsize

html_theme = "furo"
html_title = f"Recollect {release}"
html_copy_source = False
html_show_sphinx = False

draw_all(DOCS / "_pictures")  # what pages show as ../_pictures/*.svg; not committed
