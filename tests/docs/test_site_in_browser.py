"""The built site in a browser: search, mathematics, notebooks, narrow screens, and nothing from elsewhere."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

SITE = Path(__file__).parents[2] / "site" / "html"
#: A page of each kind.
PAGES = (
    *(f"docs/{name}.html" for name in ("index", "get_started", "read_results", "findings", "claims", "statistics")),
    "docs/experiment_file.html",
    *(f"docs/generated/{name}.html" for name in ("gallery", "commands", "quantities", "python")),
    "docs/generated/api/gradstats.compare.html",
    "notebooks/02_variance_vs_baseline.html",
)


SECONDS = 20

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (SITE / "index.html").is_file(), reason="make docs builds the site that this looks at"),
]


class Quiet(SimpleHTTPRequestHandler):
    """Serves without a line for each request."""

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def wait(browser, script: str):
    """What a script returns, once that is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, SECONDS).until(lambda driver: driver.execute_script(f"return {script}"))


def open_at(browser, url: str, width: int):
    device = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)
    browser.get(url)
    wait(browser, "document.readyState === 'complete'")


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("optimal token baseline", "estimators.otb"),
        ("gs.measure", "measure"),
        ("critical batch size", "analyses.batch_size"),
        ("length_weighted", "estimators.length_weighted"),
    ],
)
def test_search_finds(browser, address, words, page):
    open_at(browser, f"{address}search.html?q={quote(words)}", 1280)
    links = "[...document.querySelectorAll('#search-results ul.search a')].map(link => link.href)"
    wait(browser, "/found|did not match/.test(document.querySelector('#search-results .search-summary')?.textContent)")
    found = browser.execute_script(f"return {links}")
    assert any(f"gradstats.{page}.html" in link for link in found[:8]), found[:8]


@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_their_screen_and_ask_nobody_else(browser, address, width):
    browser.get_log("performance")
    browser.get_log("browser")
    for page in PAGES:
        open_at(browser, address + page, width)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width, page
        broken = "[...document.images].filter(one => one.complete && !one.naturalWidth).map(one => one.src)"
        assert browser.execute_script(f"return {broken}") == [], page
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
    # The browser's own start page asks for things too: only what these documents asked for counts.
    urls = {one["request"]["url"] for one in sent if one["documentURL"].startswith(address)}
    assert len(urls) > len(PAGES)
    assert {url for url in urls if not url.startswith((address, "data:"))} == set()


@pytest.mark.parametrize("page", ["docs/read_results.html", "docs/generated/api/gradstats.compare.html"])
def test_mathematics_is_set(browser, address, page):
    open_at(browser, address + page, 390)
    wait(browser, "document.querySelectorAll('mjx-container').length > 2")
    wait(browser, "!/\\\\\\(|\\\\\\[|\\$\\$/.test(document.querySelector('article').innerText)")
    assert browser.execute_script("return document.querySelectorAll('mjx-merror').length") == 0
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize(
    ("notebook", "pictures"),
    [("01_alpha_r1_distill", 1), ("02_variance_vs_baseline", 4), ("03_paper_figures", 1), ("04_inside_training", 1)],
)
def test_notebooks_show_their_output(browser, address, notebook, pictures):
    open_at(browser, f"{address}notebooks/{notebook}.html", 1280)
    widths = "[...document.querySelectorAll('.cell_output img')].map(one => one.naturalWidth)"
    assert [width > 100 for width in browser.execute_script(f"return {widths}")] == [True] * pictures
    printed = "[...document.querySelectorAll('.cell_output')].map(one => one.innerText).join('')"
    text = browser.execute_script(f"return {printed}")
    assert len(text) > 100
    assert "Warning" not in text
