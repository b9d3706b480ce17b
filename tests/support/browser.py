"""A real browser for tests of pages, and what axe-core says about a page."""

import contextlib
import shutil

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if BROWSER is None:
    pytest.skip("there is no Chromium", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


@contextlib.contextmanager
def launched_browser():
    """Yield a browser, which is closed at the end."""
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=OPTIONS)
        yield browser
        browser.close()


def violations(page):
    """Return what axe-core finds on the page."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core is not installed").Axe()
    options = {"runOnly": RULES, "resultTypes": ["violations"]}
    found = axe.run(page, options=options).response["violations"]
    return [(item["id"], [node["html"] for node in item["nodes"]]) for item in found]
