"""ClickHouse's engine behind its HTTP interface, as far as clickhouse-connect uses it: chdb in a process of its own.

    python chdb_server.py FOLDER PORT USER:PASSWORD

prints the port (its own choice for 0) and serves on loopback until its standard input ends; "" as the last lets
everybody in. Debian's server is of 2018 and PyPI has none; this one has the same tables, parts, merges and formats, and
its folder survives `kill -9`. It is no model of a cluster. Lines on its standard input make it misbehave once:

    lose TABLE N     take the Nth insert into a table from now on, and hang up instead of answering
    refuse TABLE N   answer it with an error
    die TABLE N      be killed
"""

from __future__ import annotations

import base64
import os
import re
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import clickhouse_connect
from clickhouse_connect.driver.exceptions import DatabaseError

INSERT = re.compile(r"INSERT INTO (\S+) \((.*?)\)\s+(?:SETTINGS .*)?FORMAT (\w+)\s*$", re.DOTALL)
TRANSPORT = {"query", "database", "client_protocol_version", "compress", "wait_end_of_query", "session_id", "query_id"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._answer(200, b"Ok.\n")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) if not self._chunked() else self._chunks()
        given = {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query).items()}
        server = self.server
        if server.secret and not server.lets_in(self.headers):
            self._answer(403, b"Code: 516. DB::Exception: Authentication failed. (AUTHENTICATION_FAILED)")
            return
        query = given.get("query") or body.decode()
        parameters = {name[6:]: value for name, value in given.items() if name.startswith("param_")}
        settings = {n: v for n, v in given.items() if n not in TRANSPORT and not n.startswith("param_")}
        try:
            if insert := INSERT.match(query):
                self._insert(insert, body, settings)
            else:
                self._answer(200, server.ask(query, parameters, settings))
        except DatabaseError as error:
            self._answer(500, str(error).encode())

    def _insert(self, insert: re.Match[str], body: bytes, settings: dict[str, str]) -> None:
        table = insert[1].replace("`", "")
        columns = [c.strip().strip("`") for c in insert[2].split(",")]
        fault = self.server.fault(table)
        if fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "refuse":
            self._answer(500, b"Code: 241. DB::Exception: Memory limit exceeded. (MEMORY_LIMIT_EXCEEDED)")
            return
        encoding = self.headers.get("Content-Encoding")
        self.server.take(table, columns, body, settings, insert[3], encoding)
        if fault == "lose":
            self.close_connection = True
            return
        self._answer(200, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-ClickHouse-Timezone", "UTC")
        if status != 200:
            self.send_header("X-ClickHouse-Exception-Code", "1")
        self.end_headers()
        self.wfile.write(body)

    def _chunked(self) -> bool:
        return "chunked" in self.headers.get("Transfer-Encoding", "")

    def _chunks(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def log_message(self, *arguments: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    def __init__(self, folder: str, port: int, secret: str) -> None:
        # The engine is used by the thread that made it and by no other.
        self._thread = ThreadPoolExecutor(1)
        # A busy disk takes seconds for each fsync of a hundred tables, and no test pulls the plug.
        settings = {"fsync_metadata": 0}
        made = self._thread.submit(clickhouse_connect.get_client, interface="chdb", path=folder, settings=settings)
        self._engine = made.result()
        self.secret = secret
        self._faults: dict[str, tuple[str, int]] = {}
        super().__init__(("127.0.0.1", port), Handler)

    def lets_in(self, headers) -> bool:
        return headers.get("Authorization") == "Basic " + base64.b64encode(self.secret.encode()).decode()

    def ask(self, query: str, parameters: dict[str, str], settings: dict[str, str]) -> bytes:
        if query.startswith("DELETE"):  # knows no format
            self._thread.submit(self._engine.command, query, settings=settings).result()
            return b""
        found = re.search(r"\s+FORMAT\s+(\w+)\s*$", query)
        bare = query[: found.start()] if found else query
        form = found[1] if found else settings.pop("default_format", "TabSeparated")
        return self._thread.submit(
            self._engine.raw_query, bare, parameters=parameters, settings=settings, fmt=form
        ).result()

    def take(self, table, columns, body, settings, form, encoding) -> None:
        self._thread.submit(self._engine.raw_insert, table, columns, body, settings, form, encoding).result()

    def fault(self, table: str) -> str | None:
        name = table.rpartition(".")[2]
        kind, left = self._faults.pop(name, ("", 0))
        if left > 1:
            self._faults[name] = kind, left - 1
        return kind if left == 1 else None

    def listen_for_faults(self) -> None:
        for line in sys.stdin:
            kind, table, which = line.split()
            self._faults[table] = kind, int(which)
            print("ready", flush=True)
        self.shutdown()


if __name__ == "__main__":
    with Server(sys.argv[1], int(sys.argv[2]), sys.argv[3]) as server:
        threading.Thread(target=server.listen_for_faults, daemon=True).start()
        print(server.server_address[1], flush=True)
        server.serve_forever()
