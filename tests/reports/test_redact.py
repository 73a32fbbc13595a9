from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from reports_fixtures import make_run, make_verdict

from starprof.analysis.synthetic import SyntheticRun
from starprof.analysis.synthetic.rails import Railed
from starprof.model.rundata import RunData
from starprof.model.verdict import NotCollected, Verdict
from starprof.reports import html, terminal
from starprof.reports.redact import redacted

SECRETS = (
    "gpu-farm-07.example.org",
    "gpu-farm-07",
    "secret_train.py",
    "/home/alice/secret",
    "alice",
    "10.11.12.13",
    "fe80::1ff:fe23:4567:890a",
    "02:42:ac:11:00:02",
    "GPU-8c2f1d3e-1111-2222-3333-444455556666",
    "8c2f1d3e-1111-2222-3333-444455556666",
    "tenant-9",
    "miner3000",
    "bob@example.org",
    "secretrun",
)


@pytest.fixture
def sensitive() -> tuple[RunData, Verdict]:
    run = make_run(steps=60, onset=20)
    told = (
        "gpu-farm-07.example.org (10.11.12.13:5555) is slow; miner3000 of alice runs in /kubepods/tenant-9 there",
        "see /home/alice/secret/log.txt, card GPU-8c2f1d3e-1111-2222-3333-444455556666 on 02:42:ac:11:00:02",
        "peer [fe80::1ff:fe23:4567:890a]:80, ask bob@example.org about secretrun",
    )
    verdict = make_verdict(run, onset=20)
    verdict = replace(
        verdict,
        run="secretrun",
        findings=(replace(verdict.findings[0], evidence=told, nodes=("gpu-farm-07",), action=told[0]),),
        not_collected=(NotCollected("disk", "/home/alice/secret: permission denied"),),
    )
    command = "python secret_train.py --data /home/alice/secret --token tenant-9"
    run = replace(
        run,
        info={**run.info, "name": "secretrun", "command": command, "file": "/home/alice/secret/secretrun.starprof"},
        ranks=tuple(
            replace(r, host="gpu-farm-07.example.org", gpu_uuid="GPU-8c2f1d3e-1111-2222-3333-444455556666")
            for r in run.ranks
        ),
        nodes=run.nodes.assign(host="gpu-farm-07.example.org"),
        unavailable=pd.DataFrame([{"node": 0, "source": "nfs", "reason": "gpu-farm-07: no /home/alice/secret"}]),
        events=pd.DataFrame(
            [{"kind": "hook-note", "node": 0, "rank": 0, "value": 1, "detail": "no loop in secret_train.py"}]
        ),
        samples={
            **run.samples,
            "process": pd.DataFrame([{"node": 0, "pid": 1, "rank": -1, "name": "miner3000", "user": "alice"}]),
            "cgroup": run.samples["cgroup"].assign(path="/kubepods/tenant-9"),
        },
    )
    return run, verdict


def test_nothing_that_names_machines_people_programs_or_places_is_left(sensitive: tuple[RunData, Verdict]):
    page = html.render(*redacted(*sensitive))
    text = terminal.render(*redacted(*sensitive), terminal.Terminal(width=100))
    assert [secret for secret in SECRETS if secret in page or secret in text] == []


def test_without_redaction_they_are_there(sensitive: tuple[RunData, Verdict]):
    page = html.render(*sensitive)
    assert [secret for secret in SECRETS if secret not in page] == []


def test_frames_are_cleaned_whole_not_only_what_a_report_shows(sensitive: tuple[RunData, Verdict]):
    run, _ = redacted(*sensitive)
    frames = [*run.samples.values(), run.nodes, run.events, run.gaps, run.unavailable]
    text = "\n".join(frame.to_csv() for frame in frames)
    assert [secret for secret in SECRETS if secret in text] == []


def test_numbers_ranks_causes_and_roles_stay(sensitive: tuple[RunData, Verdict]):
    run, verdict = sensitive
    clean_run, clean = redacted(run, verdict)
    assert clean.findings[0].ranks == verdict.findings[0].ranks
    assert clean.findings[0].cause == verdict.findings[0].cause
    assert clean.cost == verdict.cost
    assert clean_run.steps is run.steps
    assert "is slow" in clean.findings[0].evidence[0]


def test_hosts_stay_distinguishable():
    run = make_run(ranks=4, nodes=2)
    clean, _ = redacted(run, make_verdict(run))
    assert [r.host for r in clean.ranks] == ["host-0", "host-0", "host-1", "host-1"]


def test_words_and_ratios_are_no_paths_or_addresses(sensitive: tuple[RunData, Verdict]):
    run, verdict = sensitive
    plain = "forward/backward 1.42x of 3/4 ranks, version 2.13.0, 12:30, 5 MB/s"
    verdict = replace(verdict, reason=plain)
    assert redacted(run, verdict)[1].reason == plain


def test_names_of_switches_and_interfaces_go():
    recipe = SyntheticRun(8, 20, nodes=2, gpus=True, counters=True)
    run = Railed(recipe, rails=4, above={0: ("coreswitch", "leafswitch"), 1: ("coreswitch", "other")}).data()
    verdict = replace(make_verdict(make_run()), reason="switch leafswitch and mlx5_3/1 at 0000:20:00.0")
    clean, said = redacted(run, verdict)
    text = said.reason + clean.nodes.to_json()
    assert not any(name in text for name in ("leafswitch", "coreswitch", "mlx5_3", "0000:20:00"))
