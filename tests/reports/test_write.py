from __future__ import annotations

import os
from pathlib import Path

import pytest

from starprof.errors import StarprofError, UsageError
from starprof.reports import write


def test_an_existing_file_is_refused_without_force(tmp_path: Path):
    target = tmp_path / "report.html"
    target.write_text("mine")
    with pytest.raises(UsageError, match="--force"):
        write.check_target(target, force=False)
    assert target.read_text() == "mine"


def test_an_existing_file_is_replaced_with_force(tmp_path: Path):
    target = tmp_path / "report.html"
    target.write_text("old")
    write.check_target(target, force=True)
    assert write.write(target, "new") == 3
    assert target.read_text() == "new"


def test_a_folder_that_does_not_exist_is_told(tmp_path: Path):
    with pytest.raises(UsageError, match="does not exist"):
        write.check_target(tmp_path / "no" / "report.html", force=False)


def test_a_directory_is_no_target(tmp_path: Path):
    with pytest.raises(UsageError, match="directory"):
        write.check_target(tmp_path, force=True)


def test_a_failed_write_leaves_the_old_file_and_no_scrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    target = tmp_path / "report.html"
    target.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StarprofError, match="No space left"):
        write.write(target, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    assert target.read_text() == "old"


def test_the_file_has_the_usual_permissions(tmp_path: Path):
    write.write(tmp_path / "report.html", "x")
    (tmp_path / "usual").touch()
    assert (tmp_path / "report.html").stat().st_mode == (tmp_path / "usual").stat().st_mode
