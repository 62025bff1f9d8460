"""The documentation site: ``make docs`` builds it without a network, and a warning is an error."""

import os
import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

import generate  # noqa: E402

from fedaf.common.version import __version__  # noqa: E402

project = "fedaf"
author = copyright = "The fedaf developers"
release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["reference/generated"]  # parts that pages include
nitpicky = False

# Links and anchors are those of GitHub, so that pages can be read there too.
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
highlight_language = "none"
smartquotes_action = "D"  # dashes only
python_maximum_signature_line_length = 88
copybutton_exclude = ".linenos, .gp, .go"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "separated"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"fedaf {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False


# Pages that lie in the root of the repository, where GitHub looks for them.
ROOT_PAGES = {
    "community/contributing": DOCS.parent / "CONTRIBUTING.md",
    "community/security": DOCS.parent / "SECURITY.md",
    "community/changelog": DOCS.parent / "CHANGELOG.md",
}


def as_on_the_site(app, docname, source):
    """Show pages of the root of the repository, and adapt links that only GitHub can follow."""
    page = DOCS / f"{docname}.md"
    if docname in ROOT_PAGES:
        page = ROOT_PAGES[docname]
        source[0] = page.read_text()
        app.env.note_dependency(str(page))

    def adapted(link):
        text, path, anchor = link.groups(default="")
        target = (page.parent / path).resolve()
        for name, root_page in ROOT_PAGES.items():
            if target == root_page:
                target = DOCS / f"{name}.md"
        if not target.is_relative_to(DOCS):
            return text  # source files and results are in the repository, not on the site
        return f"[{text}]({os.path.relpath(target, (DOCS / docname).parent)}{anchor})"

    source[0] = re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)", adapted, source[0])


def setup(app):
    """Write the generated parts before pages are read."""
    app.connect("builder-inited", lambda app: generate.write(DOCS / "reference" / "generated"))
    app.connect("source-read", as_on_the_site)
