"""The report in a real browser: silent, without network, sortable by mouse and keys, readable on any screen."""

from __future__ import annotations

import itertools
import math
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dist_mp.experiments.report.page import write_report
from tests.experiments import made_runs as made
from tests.experiments.report.test_page import EVIL

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync",
         "--disable-component-update", "--disable-quic"]  # fmt: skip
CONTRAST = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const back = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = rgb(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
  };
  const ratio = (element, property) => {
    const [a, b] = [light(rgb(getComputedStyle(element)[property])), light(back(element))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  const of = (selector, property) => [...document.querySelectorAll(selector)].map((e) => ratio(e, property));
  return {
    text: of("p, h1, h2, h3, a:not(.skip), li, td, th, dt, dd, small, summary, label, button", "color"),
    chart: of("svg.chart text", "fill"), lines: of("svg.chart .line, .swatch .line", "stroke"),
    parts: of("rect", "fill"),
  };
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium; a test that has none is skipped, or fails where DIST_MP_REQUIRE_BROWSER is set."""
    refuse = pytest.fail if os.environ.get("DIST_MP_REQUIRE_BROWSER") else pytest.skip
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        refuse("playwright is not installed: pip install 'dist-mp[test]'")
    with sync_playwright() as playwright:
        own = Path(playwright.chromium.executable_path)
        found = next(filter(None, map(shutil.which, BROWSERS)), str(own) if own.exists() else None)
        if found is None:
            refuse("no Chromium: apt-get install chromium, or playwright install chromium")
        started = playwright.chromium.launch(executable_path=found, args=QUIET)
        yield started
        started.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reports: of one run, of three, and of hostile ones."""
    folder = tmp_path_factory.mktemp("pages")
    one = made.complete(folder / "one", 120, 1, {"precision": "fp32"})
    two = made.complete(folder / "two", 400, 2, {"precision": "bf16"})
    (one / "evaluation.json").write_text(
        '{"splits": {"valid": {"roc": {"false_positive_rate": [0, 0.2, 1], "true_positive_rate": [0, 0.9, 1]}}}}'
    )
    three = made.write(
        folder / "three-with-a-name-that-is-as-long-as-names-of-runs-can-be",
        [made.start(ranks=6, hosts=["a"] * 6), made.step(0), made.ranks(1, [0.1, 0.1, math.nan, 0.4, 0.2, 0.3])],
    )
    evil = made.complete(folder / EVIL.replace("/", "_"))
    facts = {EVIL: "x" * 3000, "y" * 200: EVIL}
    made.write(evil, [made.start(hosts=[EVIL] * 2, run=facts, software=facts, step=99), made.step(99)])
    write_report([one], folder / "one.html")
    write_report([one, two, three], folder / "three.html")
    write_report([evil, one], folder / "evil.html")
    return folder


@pytest.fixture
def visit(browser: Any, pages: Path) -> Iterator[Any]:
    """Open a report; at the end the page must have said nothing and asked for nothing."""
    contexts, complaints = [], []

    def open_page(name: str, width: int = 1280, **settings: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, **settings)
        contexts.append(context)
        page = context.new_page()
        own = (pages / f"{name}.html").as_uri()
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda r: complaints.append(r.url) if r.url.partition("#")[0] not in (own, "data:,") else 0)
        page.goto(own)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def column(table: Any, number: int) -> list[str]:
    return [cell.inner_text().strip() for cell in table.locator(f"tbody tr > :nth-child({number})").all()]


@pytest.mark.parametrize("name", ["one", "three", "evil"])
def test_fits_every_screen(name: str, visit: Any) -> None:
    page = visit(name)
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        brightness = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]")
        assert (int(brightness) > 200) == (scheme == "light")
        for width in (1280, 768, 390, 320):
            page.set_viewport_size({"width": width, "height": 900})
            wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, f"{width} px, {scheme}: {wide} px too wide"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(scheme: str, visit: Any) -> None:
    """WCAG 2.2, AA: 4.5 for text, 3 for what must be seen in a drawing."""
    found = visit("three", color_scheme=scheme).evaluate(CONTRAST)
    assert len(found["text"]) > 100 and min(found["text"]) >= 4.5
    assert len(found["chart"]) > 20 and min(found["chart"]) >= 4.5
    for drawn in ("lines", "parts"):
        assert len(found[drawn]) > 10 and min(found[drawn]) >= 3.0


def test_tables_sort_by_click_and_by_key(visit: Any) -> None:
    page = visit("three")
    table = page.locator("table[aria-label='Slowest ranks']")
    head = table.locator("th", has_text=re.compile("^rank"))
    button = head.locator("button")
    before = column(table, 2)
    button.click()
    assert column(table, 2) == sorted(before, key=int) != before
    assert head.get_attribute("aria-sort") == "ascending"
    button.focus()
    page.keyboard.press("Enter")
    assert column(table, 2) == sorted(before, key=int, reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    page.keyboard.press("Space")
    assert column(table, 2) == sorted(before, key=int)
    table.locator("th", has_text="run").locator("button").click()
    names = column(table, 1)
    assert names == sorted(names) and head.get_attribute("aria-sort") is None


def test_missing_values_stay_last(visit: Any) -> None:
    page = visit("three")
    table = page.locator("table[aria-label='What each run came to']")
    assert len(column(table, 1)) == 3
    heads = [cell.inner_text().strip() for cell in table.locator("thead th").all()]
    at = next(i for i, head in enumerate(heads) if head.startswith("held-out auc")) + 1
    table.locator("th", has_text="steps").locator("button").click()
    assert column(table, at)[0] == "n/a"  # the run of one step
    button = table.locator(f"thead th:nth-child({at}) button")
    for _ in range(2):
        button.click()
        assert column(table, at)[-1] == "n/a"
    assert "n/a" not in column(table, at)[:2]


def test_runs_can_be_taken_out(visit: Any) -> None:
    page = visit("three")
    curve = page.locator("#loss .run[data-run='1']")
    assert curve.is_visible()
    page.get_by_role("checkbox", name="two").uncheck()
    assert not curve.is_visible() and page.locator("#loss .run[data-run='0']").is_visible()
    page.locator("#loss svg.chart").hover(position={"x": 300, "y": 60})
    assert "two" not in page.locator("#loss .readout").inner_text()
    page.get_by_role("checkbox", name="two").check()
    assert curve.is_visible()


def test_numbers_under_the_pointer_and_by_key(visit: Any) -> None:
    page = visit("one")
    recorded = [line["loss"] for line in made.lines(Path(page.url.removeprefix("file://")).parent / "one")
                if line["kind"] == "step"]  # fmt: skip
    readout = page.locator("#loss .readout")
    page.locator("#loss svg.chart").focus()
    page.keyboard.press("End")
    assert readout.inner_text() == f"step 119: {recorded[119]:.5g}"
    page.keyboard.press("ArrowLeft")
    assert readout.inner_text() == f"step 118: {recorded[118]:.5g}"
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert readout.inner_text() == f"step 1: {recorded[1]:.5g}"
    page.keyboard.press("Escape")
    assert readout.inner_text().strip() == ""
    box = page.locator("#loss svg.chart").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 40)
    step, loss = re.fullmatch(r"step (\d+): ([\d.]+)", readout.inner_text()).groups()
    assert 50 < int(step) < 70 and float(loss) == pytest.approx(recorded[int(step)], rel=1e-4)


def test_without_javascript(visit: Any) -> None:
    page = visit("three", java_script_enabled=False)
    assert page.locator("h1").inner_text() == "3 runs compared"
    assert page.locator("#loss svg .line").first.is_visible()
    assert not page.locator("input").first.is_visible()


def test_structure_for_assistive_technology(visit: Any) -> None:
    page = visit("three")
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map((h) => Number(h.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))
    for name in ("svg[role=img]", "[role=region]", "nav", "table.sortable"):
        assert page.locator(name).count() > 0
        assert page.locator(f"{name}:not([aria-label])").count() == 0
    assert page.evaluate("[...document.querySelectorAll('input')].every((i) => i.labels.length === 1)")
    for link in page.locator("nav a").all():
        assert page.locator(str(link.get_attribute("href"))).count() == 1
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
