"""Secrets of jobs in a folder, which change while the server is at work."""

import pytest

from starprof.errors import TransportError
from starprof.serve.hall import Hall, Tokens
from starprof.spool import audit
from starprof.spool.audit import Audit


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tokens").mkdir()
    (tmp_path / "runs").mkdir()
    return tmp_path / "tokens"


def put(folder, job, text, mode=0o600):
    (folder / job).write_text(text)
    (folder / job).chmod(mode)


def test_a_server_does_not_start_with_a_secret_that_others_may_read(folder):
    put(folder, "one", "secret of job one", mode=0o640)
    with pytest.raises(TransportError, match="chmod 600"):
        Hall(folder.parent / "runs", Tokens(folder=folder), Audit(folder.parent / "audit"))


def test_a_bad_file_keeps_no_other_job_out_and_is_told_once(folder):
    put(folder, "one", "secret of job one")
    log = folder.parent / "serve.audit"
    hall = Hall(folder.parent / "runs", Tokens(folder=folder), Audit(log))
    put(folder, "open", "secret of an open job", mode=0o644)
    put(folder, "short", "x")
    put(folder, "two", "secret of job two")
    put(folder, "twin", "secret of job one")
    for _ in range(3):
        assert set(hall.secrets()) == {b"secret of job one", b"secret of job two"}
    told = [entry["why"] for entry in audit.read(log)]
    assert len(told) == 3
    assert ["chmod 600" in told[0], "too short" in told[1], "same secret" in told[2]] == [True] * 3


def test_permissions_that_are_mended_are_seen(folder):
    put(folder, "one", "secret of job one")
    put(folder, "two", "secret of job two")
    tokens = Tokens(folder=folder)
    tokens.read()
    (folder / "two").chmod(0o644)
    assert set(tokens.read()) == {b"secret of job one"}
    (folder / "two").chmod(0o600)
    assert set(tokens.read()) == {b"secret of job one", b"secret of job two"}
    assert not tokens.problems


def test_a_secret_that_is_changed_or_taken_away_is_no_longer_known(folder):
    put(folder, "one", "secret of job one")
    put(folder, "two", "secret of job two")
    tokens = Tokens(folder=folder)
    assert set(tokens.read().values()) == {"one", "two"}
    put(folder, "one", "another secret of job one")
    (folder / "two").unlink()
    assert tokens.read() == {b"another secret of job one": "one"}


def test_a_link_to_nothing_keeps_no_secret_alive_and_none_out(folder):
    put(folder, "one", "secret of job one")
    tokens = Tokens(folder=folder)
    tokens.read()
    (folder / "link").symlink_to(folder / "nothing")
    put(folder, "two", "secret of job two")
    (folder / "one").unlink()
    assert tokens.read() == {b"secret of job two": "two"}
    assert set(Tokens(folder=folder).read()) == {b"secret of job two"}


def test_a_server_that_begins_without_secrets_is_not_stopped_by_a_bad_one(folder):
    hall = Hall(folder.parent / "runs", Tokens(folder=folder), Audit(folder.parent / "audit"))
    put(folder, "open", "secret of an open job", mode=0o644)
    put(folder, "two", "secret of job two")
    assert hall.secrets() == [b"secret of job two"]
