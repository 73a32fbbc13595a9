"""Where a database is, and what may be sent there."""

from __future__ import annotations

from pathlib import Path

import pytest

from starprof.errors import UsageError
from starprof.launch import environment
from starprof.model import env
from starprof.store.clickhouse.address import Address, is_address, parse

PASSWORD = {env.CLICKHOUSE_PASSWORD: "s3cret"}


def test_everything_but_the_host_has_a_default() -> None:
    assert parse("clickhouse://localhost", {}) == Address("localhost", 8123, "default", "starprof", "", tls=False)


def test_all_parts_are_read_and_written_again() -> None:
    text = "clickhouse://me%40x@db.example:9000/runs/train%202?tls=off"
    address = parse(text, PASSWORD)
    assert (address.host, address.port, address.user) == ("db.example", 9000, "me@x")
    assert (address.database, address.run, address.tls) == ("runs", "train 2", False)
    assert address.text == text
    assert "s3cret" not in repr(address)


def test_a_path_is_understood_too() -> None:
    """The command line's paths have lost a slash."""
    assert parse(Path("clickhouse://[::1]:1/db/run"), {}).text == "clickhouse://[::1]:1/db/run"
    assert is_address(Path("clickhouse://localhost"))
    assert not is_address(Path("clickhouse.starprof"))


@pytest.mark.parametrize("host", ["db.example", "10.0.0.5", "localhost.evil.example", "[fd00::1]"])
def test_records_leave_the_machine_only_with_a_password_and_then_over_tls(host: str) -> None:
    with pytest.raises(UsageError, match="only with a password"):
        parse(f"clickhouse://{host}", {})
    assert parse(f"clickhouse://{host}", PASSWORD).tls
    assert parse(f"clickhouse://{host}", PASSWORD).port == 8443


def test_a_password_in_the_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="must not hold the password") as refused:
        parse("clickhouse://me:s3cret@localhost", {})
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "clickhouse://",
        "clickhouse://localhost:http",
        "clickhouse://localhost/a-b",
        "clickhouse://localhost/a/b/c",
        "clickhouse://localhost?tls=maybe",
        "clickhouse://localhost?secure=1",
        "clickhouse://localhost?ca=/nowhere",
    ],
)
def test_what_is_no_address_is_told(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text, {})


def test_the_password_may_lie_in_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret\n")
    given = {env.CLICKHOUSE_PASSWORD_FILE: str(file)}
    file.chmod(0o640)
    with pytest.raises(UsageError, match="chmod 600"):
        parse("clickhouse://localhost", given)
    file.chmod(0o600)
    assert parse("clickhouse://localhost", given).password == "s3cret"
    file.write_text("")
    with pytest.raises(UsageError, match="no password"):
        parse("clickhouse://localhost", given)


def test_the_job_does_not_get_the_password() -> None:
    given = environment.for_job({**PASSWORD, "A": "b"}, pythonpath=None, spool=Path("/s"), node=0, rate_hz=1)
    assert given["A"] == "b"
    assert env.CLICKHOUSE_PASSWORD not in given
    assert environment.for_helpers(PASSWORD, pythonpath=None)[env.CLICKHOUSE_PASSWORD] == "s3cret"
