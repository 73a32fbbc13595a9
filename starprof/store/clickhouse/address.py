"""Where a database is: `clickhouse://[USER@]HOST[:PORT][/DATABASE[/RUN]][?tls=on|off][&ca=FILE]`.

The password is never a part of it: an address shows in process lists, logs and shell histories. It comes from
`STARPROF_CLICKHOUSE_PASSWORD`, or from the file that `STARPROF_CLICKHOUSE_PASSWORD_FILE` names, which nobody but its
owner may read. Records leave this machine only with a password, and over TLS unless the address says `tls=off`.
"""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from starprof.errors import UsageError
from starprof.model import env

SCHEME = "clickhouse"
DEFAULT_DATABASE = "starprof"
DEFAULT_USER = "default"
PLAIN_PORT, TLS_PORT = 8123, 8443

_BEGINNING = re.compile(rf"{SCHEME}:/+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
FORM = f"{SCHEME}://[USER@]HOST[:PORT][/DATABASE[/RUN]]"


@dataclass(frozen=True, slots=True)
class Address:
    """A database, or one run in it.

    Attributes:
        run: id, beginning of an id, or name of the run; "" for the database as a whole.
        ca: file with the authorities that may have signed the server's certificate, "" = the system's.
        password: kept out of every text.
    """

    host: str
    port: int
    user: str
    database: str
    run: str
    tls: bool
    ca: str = ""
    password: str = field(default="", repr=False)
    options: str = ""

    @property
    def text(self) -> str:
        """The address as the user may type it again."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = "" if self.user == DEFAULT_USER else f"{quote(self.user, safe='')}@"
        run = f"/{quote(self.run, safe='')}" if self.run else ""
        return f"{SCHEME}://{user}{host}:{self.port}/{self.database}{run}{self.options}"

    def of_run(self, run: str) -> Address:
        """One run in the same database."""
        return replace(self, run=run)


def is_address(place: str | Path) -> bool:
    """Whether it names a database and not a file; a `Path` has lost one of the two slashes."""
    return _BEGINNING.match(str(place)) is not None


def parse(place: str | Path, environ: Mapping[str, str] | None = None) -> Address:
    """Read an address, and the password from the environment.

    Raises:
        UsageError: it has another form, holds a password, or would send records away without authentication.
    """
    parts = urlsplit(_BEGINNING.sub(f"{SCHEME}://", str(place), count=1))
    if parts.password is not None:
        raise UsageError(
            f"an address must not hold the password, others can see it: set {env.CLICKHOUSE_PASSWORD} or "
            f"{env.CLICKHOUSE_PASSWORD_FILE}"
        )
    try:
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise UsageError(f"{place} is no address: {error}") from None
    database, _, run = parts.path.strip("/").partition("/")
    database, run = unquote(database) or DEFAULT_DATABASE, unquote(run)
    if not host or not _NAME.fullmatch(database) or "/" in run:
        raise UsageError(f"{place} is no address of a database: write it as {FORM}")
    tls, ca = _security(parts.query, here=is_loopback(host))
    password = _password(os.environ if environ is None else environ)
    if not password and not is_loopback(host):
        raise UsageError(
            f"{host} is another machine, records go there only with a password: set {env.CLICKHOUSE_PASSWORD} or "
            f"{env.CLICKHOUSE_PASSWORD_FILE}"
        )
    return Address(
        host=host,
        port=port or (TLS_PORT if tls else PLAIN_PORT),
        user=unquote(parts.username or "") or DEFAULT_USER,
        database=database,
        run=run,
        tls=tls,
        ca=ca,
        password=password,
        options=f"?{parts.query}" if parts.query else "",
    )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its very name: what a resolver says of others is no proof."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _security(query: str, *, here: bool) -> tuple[bool, str]:
    """Whether to use TLS, and whose certificates to believe."""
    given = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
    tls, ca = given.pop("tls", "off" if here else "on"), given.pop("ca", "")
    if given or tls not in {"on", "off"}:
        raise UsageError(f"?{query} is not understood: an address takes tls=on, tls=off and ca=FILE")
    if ca and not Path(ca).is_file():
        raise UsageError(f"ca={ca}: there is no such file")
    return tls == "on", ca


def _password(environ: Mapping[str, str]) -> str:
    given, file = environ.get(env.CLICKHOUSE_PASSWORD, ""), environ.get(env.CLICKHOUSE_PASSWORD_FILE, "")
    if given or not file:
        return given
    try:
        with Path(file).open() as opened:
            if os.fstat(opened.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise UsageError(f"others can read the password in {file}: chmod 600 {file}")
            password = opened.readline().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the password in {file} can't be read: {error}") from None
    if not password:
        raise UsageError(f"{file} holds no password")
    return password
