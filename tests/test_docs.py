"""The pages are true: their Python examples run and print what they say, and their links lead somewhere."""

import doctest
import re
from pathlib import Path

import pytest

from quantkit.cli.app import group

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_examples(page, monkeypatch, tmp_path):
    # A fence ends an example: as a blank line to doctest.
    text = re.sub(r"^```.*$", "", page.read_text(), flags=re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    (tmp_path / "datasets").symlink_to(ROOT / "datasets")
    monkeypatch.chdir(tmp_path)
    report = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert not report, "".join(report)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_command_is_on_its_page():
    page = (ROOT / "docs" / "cli.md").read_text()
    listed = re.findall(r"^quantkit (\w+)", page.split("```")[1], re.MULTILINE)
    assert sorted(listed) == sorted(group.commands)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda p: p.name)
def test_no_page_holds_a_placeholder(page):
    assert re.findall(r"^[A-Z]+(?:[-_][A-Z]+)+$", page.read_text(), re.MULTILINE) == []


def test_the_readme_gives_two_commands():
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    assert all(block.count("\n") == 1 for block in blocks)
