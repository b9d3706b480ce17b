"""The site in a real browser, opened as a file, as the README says."""

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("zensical", reason="the extra docs is not installed")
from browser import launched_browser  # noqa: E402

ROOT = Path(__file__).parents[2]
SITE = """
site_name: reverie
use_directory_urls: false
theme: {name: material, font: false}
plugins: [offline, search]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site of a single page, finished as the documentation is."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "mkdocs.yml").write_text(SITE)
    (folder / "docs").mkdir()
    (folder / "docs" / "index.md").write_text("# Reverie\n\n## Replay ratio\n\nUpdates per env step.\n")
    shutil.copy(ROOT / "docs" / "worker.js", folder / "docs")
    build = [Path(sys.executable).with_name("zensical"), "build", "--clean"]
    subprocess.run(build, cwd=folder, check=True, capture_output=True)
    sys.path.append(str(ROOT / "docs" / "tools"))
    importlib.import_module("documentation").finish(folder / "site")
    return (folder / "site" / "index.html").as_uri()


def test_the_search_keeps_what_is_typed(site):
    with launched_browser() as browser:
        page = browser.new_page()
        page.goto(site)
        page.locator(".md-search__button").click()
        field = page.get_by_role("combobox", name="Search")
        for end, letter in enumerate("replay", 1):
            field.press(letter)
            page.wait_for_timeout(200)  # the search answers, and the page draws itself again
            assert field.input_value() == "replay"[:end]
        page.get_by_role("option", name="Replay ratio").first.wait_for()
