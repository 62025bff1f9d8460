"""The built site needs no other server, and has what is generated from the code."""

import re
import subprocess
import sys

import pytest

from support.pages import DOCS

pytest.importorskip("sphinx", reason="the tools of the documentation are not installed (make docs)")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", DOCS, folder], check=True, timeout=280)
    return folder


def test_no_page_loads_anything_from_another_server(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"([^\"]+)", page.read_text())
        loaded += re.findall(r"<link[^>]*\srel=\"(?:stylesheet|preload|icon)\"[^>]*\shref=\"([^\"]+)", page.read_text())
        assert [address for address in loaded if re.match(r"(?:https?:)?//", address)] == []
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//|@import", style.read_text()), style.name


def test_the_reference_is_on_the_site(site):
    assert "--memory-budget" in (site / "reference" / "cli.html").read_text()
    assert "method.lambda_glob" in (site / "reference" / "settings.html").read_text()
    assert "Report a vulnerability" in (site / "community" / "security.html").read_text()
