"""The static page in a real browser: nothing overflows, nothing runs that a model wrote, all of it without a network.

Needs playwright and a chromium of the system; .ci/run installs both.
"""

from __future__ import annotations

import json
import shutil

import pytest

from evaluation_story import HOSTILE, mark_sheet, story
from limbeck.reporting.page import page

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")]

OWN = ("file:", "blob:")
WIDTHS = (360, 1024, 1440)
# Elements that stick out to the right, but for those within a table that scrolls by itself.
STICKING_OUT = """() => [...document.querySelectorAll('body *')].filter((element) => {
  const box = element.getBoundingClientRect();
  return box.width && box.right > innerWidth + 1 && !element.closest('.scroll');
}).map((element) => element.outerHTML.slice(0, 200))"""


@pytest.fixture(scope="module")
def browser():
    options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for kind in ("worth", "after", "compare"):
        result, answers, _ = story(kind)
        marks = [mark_sheet([answers["student"][1]["key"]]), mark_sheet(["7/0"], "".join(HOSTILE))]
        (folder / f"{kind}.html").write_text(page(result, answers, marks), encoding="utf-8")
    return folder


@pytest.fixture
def view(browser, pages):
    """Opens a page; at the end nothing has been asked from a network, and nothing has gone wrong."""
    contexts, told = [], []

    def opened(kind="after", *, width=1024, **options):
        context = browser.new_context(viewport={"width": width, "height": 800}, offline=True, **options)
        contexts.append(context)
        shown = context.new_page()
        shown.on("request", lambda request: told.extend(url for url in [request.url] if url[:5] not in OWN))
        shown.on("console", lambda message: told.append(message.text))
        shown.on("pageerror", lambda error: told.append(str(error)))
        shown.on("dialog", lambda dialog: told.append(dialog.message))
        shown.goto((pages / f"{kind}.html").as_uri())
        return shown

    yield opened
    for context in contexts:
        context.close()
    assert told == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", ["worth", "after", "compare"])
def test_nothing_sticks_out(view, kind, width, scheme):
    shown = view(kind, width=width, color_scheme=scheme)
    for part in ("#verdict", "#models", "#row-22", "#row-25", "#marks", "#marked-2"):
        shown.evaluate(f"document.querySelector('{part}').scrollIntoView()")
        assert shown.evaluate(STICKING_OUT) == [], part
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    background = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 24, 28)")


@pytest.mark.parametrize("script", [True, False])
def test_a_filter_shows_its_rows_with_and_without_the_script(view, script):
    shown = view(java_script_enabled=script)
    rows = shown.locator(".row")
    assert rows.count() == 200
    link = shown.get_by_role("link", name="Only where they differ")
    expected = int(link.locator("span").inner_text())
    assert 0 < expected < 200
    link.click()
    assert shown.locator(".row:visible").count() == expected
    assert shown.locator(".set:visible").inner_text().startswith(f"{expected} of 200 rows: ")
    shown.locator("#models").get_by_role("link", name="3", exact=True).first.click()
    assert shown.locator(".row:visible").count() == 3
    shown.get_by_role("link", name="Show all").locator("visible=true").click()
    assert shown.locator(".row:visible").count() == 200


def test_rows_are_found_by_their_words(view):
    shown = view()
    shown.get_by_role("searchbox").fill("order 41007 ")
    assert shown.locator(".row:visible").count() == 1
    shown.get_by_role("searchbox").fill("")
    assert shown.locator(".row:visible").count() == 200


def test_the_keyboard_is_enough(view):
    shown = view()
    shown.keyboard.press("Tab")
    assert shown.evaluate("document.activeElement.textContent") == "Skip to the rows"
    shown.keyboard.press("Enter")
    assert shown.evaluate("location.hash") == "#rows"
    shown.locator("#mark-1-1").focus()
    shown.keyboard.press("ArrowRight")
    assert shown.evaluate("document.activeElement.id") == "mark-1-2"
    shown.keyboard.press("Enter")
    assert shown.evaluate("location.hash") == "#note-1-2"


def test_the_data_can_be_saved(view, tmp_path):
    shown = view()
    with shown.expect_download() as saved:
        shown.get_by_role("button", name="Save the data as JSON").click()
    saved.value.save_as(tmp_path / "data.json")
    assert len(json.loads((tmp_path / "data.json").read_text())["rows"]) == 200


def test_paper_is_white_and_has_all_of_the_text(view):
    shown = view("worth", color_scheme="dark")
    shown.emulate_media(media="print")
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not shown.locator(".filters").is_visible()
    assert shown.locator(".row:visible").count() == 200
    assert shown.pdf(format="A4").startswith(b"%PDF")
