"""The site in a real browser, opened as a file, as the README says."""

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("zensical", reason="the extra docs is not installed")
from browser import launched_browser, playwright, violations

expect = playwright.expect
ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "docs" / "tools"))
DOCUMENTATION = importlib.import_module("documentation")
PAGE = """# Replay

Updates per env step.

|   | a | b |
|---|---|---|
| ratio | 1 | 2 |

| | tutorial | what you do | training |
|---|---|---|---|
| ![A dot](data:image/gif;base64,R0lGODlhAQABAAAAACw=) | [Replay](other.md) | sample windows of rows | 8 min 12 s |

<div class="equation" markdown="0">x + y + z</div>

```python
import reverie
```

## Replay ratio

[Sections](#replay-ratio)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of a site of two pages, with the settings of the documentation."""
    folder = tmp_path_factory.mktemp("site")
    head, _, rest = (ROOT / "mkdocs.yml").read_text().partition("  - mkdocstrings:")
    assert rest
    docs = folder / "build" / "docs"
    docs.mkdir(parents=True)
    (folder / "build" / "mkdocs.yml").write_text(
        f"{head}nav: [Start: [index.md, page.md], More: [other.md, other/below.md]]\n"
    )
    for name in ("index", "page", "other"):
        (docs / f"{name}.md").write_text(f"{DOCUMENTATION.LIVE}\n\n{PAGE}" if name == "index" else PAGE)
    for file in (ROOT / "docs").glob("*.*s"):  # JavaScript and CSS
        shutil.copy(file, docs)
    (docs / "other").mkdir()
    (docs / "other" / "below.md").write_text("# Below")
    (docs / "images").mkdir()
    shutil.copy(ROOT / "docs/images/step.html", docs / "images")
    build = [Path(sys.executable).with_name("zensical"), "build", "--clean", "-f", "build/mkdocs.yml"]
    subprocess.run(build, cwd=folder, check=True, capture_output=True)
    assert DOCUMENTATION.finish(folder / "build" / "site") == 0
    return folder / "build" / "site"


@pytest.fixture(scope="module")
def browser():
    with launched_browser() as browser:
        yield browser


def test_the_search_keeps_what_is_typed(browser, site):
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.locator(".md-search__button").click()
    field = page.get_by_role("combobox", name="Search")
    for end, letter in enumerate("replay", 1):
        field.press(letter)
        page.wait_for_timeout(200)  # the search answers, and the page draws itself again
        assert field.input_value() == "replay"[:end]
    page.get_by_role("option", name="Replay ratio").first.wait_for()


def test_a_table_with_pictures_fits_a_phone(browser, site):
    page = browser.new_page(viewport={"width": 390, "height": 900})
    page.goto((site / "index.html").as_uri())
    table = page.locator("table", has_text="tutorial")
    assert table.evaluate("table => table.scrollWidth") <= 360


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_nothing_is_inaccessible(browser, site, scheme, width):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    for name in ("index", "page"):
        page.goto((site / f"{name}.html").as_uri())
        page.locator(".md-code__nav[role=presentation]").wait_for(state="attached")
        assert violations(page) == []


@pytest.mark.parametrize("address", ["missing.html", "other/missing.html", "other/missing/"])
def test_the_page_of_a_missing_page_leads_back(browser, site, address):
    """Also below a folder of a host."""
    page, home = browser.new_page(), "http://site.example/below"

    def answer(route):
        file = site / route.request.url.removeprefix(f"{home}/").split("?")[0]
        route.fulfill(path=file if file.is_file() else site / "404.html")

    page.route("**/*", answer)
    page.goto(f"{home}/{address}")
    assert page.evaluate("document.styleSheets.length") > 1
    links = page.locator("a[href]").evaluate_all("links => links.map((link) => link.href)")
    assert {f"{home}/index.html", f"{home}/other.html"} <= {*links}


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_one_walks_in_a_dream_on_the_first_screen(browser, site, scheme, width):
    """With keys alone, in half a megabyte that are committed: the site is built without training."""
    assert "docs/images/step.html" in (ROOT / "README.md").read_text()
    assert DOCUMENTATION.first_page().index(DOCUMENTATION.LIVE) < 200
    assert (site / "images/step.html").stat().st_size < 600_000
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto((site / "index.html").as_uri())
    frame = page.frame_locator("iframe[title]")
    frame.get_by_role("button", name="forward").focus()
    first = frame.locator("#real span").inner_text()
    page.keyboard.press("ArrowRight")
    expect(frame.locator("#real span")).not_to_have_text(first)
    assert frame.locator("html").evaluate("html => html.scrollWidth <= innerWidth")
    assert violations(page) == []
