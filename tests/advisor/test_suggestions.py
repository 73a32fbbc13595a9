"""What an advisor tells: rows in the run file, the report's section, a webhook, `ctl`, and the command line."""

import http.server
import json
import threading

import pandas as pd
import pytest
from typer.testing import CliRunner

from starprof.advisor import Gain, Note, Proposal
from starprof.advisor.process import told
from starprof.advisor.webhook import Webhook
from starprof.cli import _with_values, build_app, main
from starprof.errors import UsageError
from starprof.launch import start
from starprof.model.schema import BY_NAME
from starprof.reports.material import Material
from starprof.reports.sections import advisor as section

MADE = Proposal(
    "m-sync", {"m": 3}, (3,), ("node7",), Gain(2.0, 1.8, 2.3), 2.1, 0.9, 0.1, 0.4, 0.1, 0, 40, "rank 3 is late"
)


def notes():
    kept = Gain(1.9, 1.7, 2.1)
    return [
        Note("proposed", 1, "rank 3 is late", "m-sync", "native", MADE),
        Note("kept", 1, "measured", "m-sync", "m-sync", MADE, kept, 30),
        Note("returned", 1, "it is well <again>", "native", "m-sync", MADE, kept),
    ]


def test_the_report_has_every_stage(monkeypatch):
    table = BY_NAME["advisor_action"]
    rows = []
    for at, note in enumerate(notes()):
        cells = {"node": 0, "mono_ns": at * 10**9, "attempt": 0, **note.cells()}
        cells["options"] = json.dumps(cells.get("options"))
        rows.append({name: cells.get(name) for name in table.names})

    class Run:
        advisor_actions = pd.DataFrame(rows)
        steps = type("Steps", (), {"columns": {}})

    made = section.render(Material(Run, None))
    assert "moved the job 1 time; kept 1, measured 1.90x; back 1" in made.body
    assert "3 on node7" in made.body
    assert "2.00x (1.80 to 2.30)" in made.body
    assert "&lt;again&gt;" in made.body
    Run.advisor_actions = None
    assert section.render(Material(Run, None)) is None


def test_a_suggestion_is_posted_where_the_user_wants_it():
    heard = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        hook = Webhook(f"http://127.0.0.1:{server.server_port}/advice")
        hook.post(told(Note("suggested", 0, "rank 3 is late", "m-sync", "native", MADE)))
        hook.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    (said,) = heard
    assert (said["mode"], said["ranks"], said["predicted_low"], said["accuracy_risk"]) == ("m-sync", "3", 1.8, 0.1)
    with pytest.raises(UsageError):
        Webhook("file:///etc/passwd")


def test_advise_alone_means_observe():
    assert _with_values(["record", "--advise", "-o", "x", "--", "job", "--advise"]) == [
        *["record", "--advise=observe", "-o", "x", "--", "job", "--advise"]
    ]
    assert _with_values(["record", "--advise", "apply", "--", "j"]) == ["record", "--advise", "apply", "--", "j"]
    assert _with_values(["demo", "--advise"]) == ["demo", "--advise"]


def test_what_the_advisor_is_told():
    plan = json.loads(start._advise(start.Wish(("x",), advise="apply", limits={"hold_s": 5})))
    assert (plan["authority"], plan["limits"]["hold_s"]) == ("apply", 5.0)
    assert json.loads(start._control(start.Wish(("x",), advise="apply")))["health"] is True
    assert start._control(start.Wish(("x",), advise="observe")) is None
    for wish in [
        start.Wish(("x",), limits={"hold_s": 5}),
        start.Wish(("x",), advise="always"),
        start.Wish(("x",), advise="apply", mode="m-sync"),
        start.Wish(("x",), advise="suggest", webhook="nowhere"),
        start.Wish(("x",), advise="apply", limits={"speed": 5}),
    ]:
        with pytest.raises(UsageError):
            start._advise(wish)


def test_draining_a_node_is_printed_and_not_run(monkeypatch):
    monkeypatch.setenv("PATH", "")
    done = CliRunner().invoke(build_app(), ["ctl", "run.starprof", "drain", "--host", "node7"])
    assert done.exit_code == 0, done.output
    assert "scontrol update nodename=node7 state=drain" in done.output
    assert "kubectl drain node7" in done.output
    assert main(["ctl", "run.starprof", "drain"]) == 2
    assert main(["ctl", "run.starprof", "drain", "--host", "a", "--run", "elastic"]) == 2
