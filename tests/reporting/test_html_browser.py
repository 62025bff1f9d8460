"""The report in a browser that reaches no host: no request, no error, the numbers of result.json, accessible, small."""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from fedaf.reporting.html import write_report
from support.browser import OFFLINE, chromium
from support.reports import a_line, digits_runs, invented

pytestmark = pytest.mark.browser

WIDTHS = (1280, 390)
THEMES = ("light", "dark")
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = chromium()
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=OFFLINE)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    return digits_runs(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory) -> Path:
    return write_report(runs, tmp_path_factory.mktemp("report") / "report.html")


class Visit:
    """A page that was opened, with everything that it asked for or complained about."""

    def __init__(self, browser: Browser, file: Path, *, width: int = 1280, theme: str = "light", script: bool = True):
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if theme == "dark" else "light",
            offline=True,
            java_script_enabled=script,
        )
        self.page: Page = context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        self.page.goto(file.as_uri(), wait_until="load")

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, *_: object) -> None:
        self.page.context.close()

    @property
    def outside(self) -> list[str]:
        """What was asked for besides the file itself."""
        return [url for url in self.requests if not url.startswith("data:") and url != self.page.url]


def figures(run: Path) -> dict[str, Any]:
    return json.loads((run / "result.json").read_text())


def values(page: Page) -> set[float]:
    return {float(v) for v in page.eval_on_selector_all("data", "all => all.map(each => each.value)")}


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_report_asks_for_nothing_complains_about_nothing_and_fits_the_screen(browser, report, width, theme):
    with Visit(browser, report, width=width, theme=theme) as visit:
        assert visit.page.title() == "2 methods on digits"
        assert visit.outside == []
        assert visit.complaints == []
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        visit.page.eval_on_selector_all("details", "all => all.forEach(each => { each.open = true })")
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        back = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, back[4:-1].split(","))) > 382) == (theme == "light")


def test_the_page_holds_the_numbers_of_result_json(browser, report, runs):
    with Visit(browser, report) as visit:
        shown = values(visit.page)
        text = visit.page.inner_text("body")
        for method in ("fedaf", "fedavg"):
            results = [figures(run) for run in runs if run.parent.name == method]
            for key in ("best_accuracy", "last_accuracy", "seconds", "download_bytes_per_client_round"):
                assert fmean(result[key] for result in results) in shown, key
            best = fmean(result["best_accuracy"] for result in results)
            assert f"{best:.2f}\N{NO-BREAK SPACE}±" in text
        for row in figures(runs[0])["metrics"]["last"]["confusion"]:
            assert {float(count) for count in row} <= shown


def test_a_reader_without_script_sees_the_same(browser, report):
    with Visit(browser, report) as visit, Visit(browser, report, script=False) as plain:
        assert plain.page.inner_text("body") == visit.page.inner_text("body")
        assert plain.page.locator("svg[role=img]:visible").count() >= 15


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_serious(browser, report, width, theme):
    with Visit(browser, report, width=width, theme=theme) as visit:
        visit.page.eval_on_selector_all("details", "all => all.forEach(each => { each.open = true })")
        found = Axe().run(visit.page).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"][:200]) for each in found if each["impact"] in SERIOUS] == []


def test_axe_would_find_text_that_cannot_be_read(browser, report, tmp_path):
    pale = tmp_path / "pale.html"
    pale.write_text(report.read_text().replace("--muted: #54607a", "--muted: #d0d5dd"))
    with Visit(browser, pale) as visit:
        found = Axe().run(visit.page).response["violations"]
    assert any(each["id"] == "color-contrast" and each["impact"] in SERIOUS for each in found)


def test_every_image_is_shown_with_its_pixels_sharp(browser, report):
    with Visit(browser, report) as visit:
        images = visit.page.eval_on_selector_all(
            "img", "all => all.map(each => [each.naturalWidth, getComputedStyle(each).imageRendering])"
        )
    assert len(images) >= 6
    assert all(width > 0 and kind == "pixelated" for width, kind in images)


def test_sizes_are_small_with_and_without_a_gallery(report, runs, tmp_path):
    assert report.stat().st_size < 4_000_000
    plain = [run for run in runs if run.parent.name == "fedavg"]
    assert write_report(plain, tmp_path / "plain.html").stat().st_size < 1_000_000


def test_markup_in_names_stays_text(browser, tmp_path):
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    line = a_line(1, failures={evil: evil}, asked=[evil])
    run = invented(tmp_path / "run", dataset=evil, classes=[evil, "a", "b"], device=evil, lines=[line])
    with Visit(browser, write_report([run], tmp_path / "report.html", title=evil)) as visit:
        assert visit.complaints == []
        assert visit.outside == []
        assert visit.page.inner_text("h1") == evil
        assert visit.page.locator("img, script").count() == 0


def test_a_printed_report_is_on_white_and_has_no_navigation(browser, report):
    with Visit(browser, report, theme="dark") as visit:
        visit.page.emulate_media(media="print", color_scheme="dark")
        assert not visit.page.locator("nav").is_visible()
        assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert visit.page.evaluate("getComputedStyle(document.body).color") == "rgb(23, 32, 46)"
        assert len(visit.page.pdf()) > 10_000
