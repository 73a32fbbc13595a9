"""What the project's own files promise."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import typer.main

import starprof
from starprof.cli import build_app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = sorted(p for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
LINK_HOSTS = {"keepachangelog.com", "www.apache.org", "www.w3.org", "docs.kernel.org", "github.com", "pytorch.org"}


def tracked(*patterns):
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def commands_in(text, section):
    body = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[1]
    return [line for block in re.findall(r"```sh\n(.*?)```", body, re.DOTALL) for line in block.splitlines() if line]


def make_targets():
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def cli_verbs():
    return set(typer.main.get_command(build_app()).commands)


def test_two_commands_do_all_the_set_up():
    assert commands_in(README, "Set up") == ["make demo", "make test"]
    assert {"demo", "test"} <= make_targets()


def test_ci_runs_what_the_readme_says():
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("make test")


def test_every_make_target_in_the_docs_exists():
    used = {t for page in PAGES for t in re.findall(r"(?:^|`)make ([a-z]+)", page.read_text(), re.MULTILINE)}
    assert used <= make_targets()


def test_every_verb_is_documented_and_every_documented_verb_exists():
    text = "\n".join(page.read_text() for page in PAGES)
    documented = set(re.findall(r"(?:^|[`$] ?)starprof ([a-z]+(?:-[a-z]+)*)\b", text, re.MULTILINE))
    assert documented == cli_verbs()
    index = (ROOT / "docs" / "index.md").read_text()
    assert {v for v in cli_verbs() if f"`starprof {v}" in index} == cli_verbs()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_between_pages_resolve(page):
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert missing == []


def test_nothing_names_this_or_that_machine():
    """Links go to known public places only, and no path of a developer's machine has slipped in."""
    private = re.compile("/" + "work/(?:main|shared)|/" + "tmp/w/")
    for path in tracked("*.py", "*.md", "*.toml", "*.txt", "*.sh", "Makefile", ".ci/run", "*.js", "*.css"):
        if path.is_symlink():
            continue
        text = path.read_text()
        assert not private.search(text), path
        hosts = set(re.findall(r"https?://([\w.-]+\.[a-z]{2,})\b", text))
        assert hosts <= LINK_HOSTS, (path, hosts - LINK_HOSTS)


@pytest.mark.parametrize("name", ["collectors", "analysis", "reports"])
def test_the_top_level_shows_the_packages(name):
    assert (ROOT / name).is_symlink()
    assert (ROOT / name).resolve() == ROOT / "starprof" / name


def test_the_version_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == starprof.__version__
    assert re.search(
        rf"^## \[(Unreleased|{re.escape(starprof.__version__)})\]", (ROOT / "CHANGELOG.md").read_text(), re.M
    )


def test_the_pinned_torch_is_one_that_the_project_allows():
    pinned = re.search(r"^torch==(\d+)\.(\d+)", (ROOT / "constraints" / "cpu.txt").read_text(), re.MULTILINE)
    assert (int(pinned[1]), int(pinned[2])) >= (2, 6)


def test_no_two_modules_of_the_tests_have_one_name():
    # Pytest puts their folders on the path: the second one would be taken for the first.
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert not [name for name in set(names) if names.count(name) > 1]
