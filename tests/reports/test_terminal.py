from __future__ import annotations

import re
from dataclasses import replace

import pytest
from reports_fixtures import healthy, make_hostile, make_run, make_verdict

from starprof.model.rundata import RunData
from starprof.model.verdict import Verdict
from starprof.reports.terminal import Terminal, render


def lines(run: RunData, verdict: Verdict, terminal: Terminal | None = None) -> list[str]:
    return render(run, verdict, terminal or Terminal(width=100)).splitlines()


def test_the_verdict_stands_first(run: RunData, verdict: Verdict):
    assert lines(run, verdict)[0].startswith("STRAGGLER: rank 1 (node n0) makes every step 1.42")


def test_a_finding_goes_from_evidence_to_action_to_verification(run: RunData, verdict: Verdict):
    text = render(run, verdict, Terminal(width=100))
    places = [text.index(part) for part in ("own backward 66 ms", "Profile the backward", "gain", "The step falls")]
    assert places == sorted(places)


def test_the_culprit_is_marked_with_a_word(run: RunData, verdict: Verdict):
    marked = [line for line in lines(run, verdict) if "culprit" in line]
    assert len(marked) == 1
    assert marked[0].split()[0] == "1"


def test_a_healthy_run_marks_nobody(run: RunData):
    text = render(run, healthy(run), Terminal())
    assert text.startswith("NO STRAGGLER")
    assert "culprit" not in text


def test_what_is_missing_and_what_recording_cost_are_told(run: RunData, verdict: Verdict):
    text = render(run, verdict, Terminal(width=100))
    assert "nvml: no NVIDIA driver" in text
    assert "hook: 14.2 µs a step" in text
    assert re.search(r"agent on node 0: 0\.3 % of a core", text)


def test_the_state_of_the_recording_is_told(run: RunData, verdict: Verdict):
    noted = replace(run, info={**run.info, "note": "it is still being recorded"})
    assert "Note: it is still being recorded" in render(noted, verdict, Terminal(width=100))


def test_no_escape_is_written_without_colour(run: RunData, verdict: Verdict):
    assert "\x1b" not in render(run, verdict, Terminal(color=False))


def test_colour_is_used_where_the_terminal_takes_it(run: RunData, verdict: Verdict):
    assert "\x1b[1;31mSTRAGGLER" in render(run, verdict, Terminal(color=True))


def test_escapes_and_direction_marks_in_names_are_shown_not_sent(run: RunData, verdict: Verdict):
    text = render(*make_hostile(run, verdict), Terminal(width=100, color=False))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\\x1b" in text


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(run: RunData, verdict: Verdict, width: int):
    assert max(map(len, lines(run, verdict, Terminal(width=width)))) <= width


def test_an_encoding_without_these_signs_gets_plain_ascii(run: RunData, verdict: Verdict):
    text = render(run, verdict, Terminal(width=100, encoding="ascii"))
    assert text.isascii()
    assert "1.42x slower" in text
    assert "14.2 us a step" in text


def test_an_unknown_encoding_gets_plain_ascii(run: RunData, verdict: Verdict):
    assert render(run, verdict, Terminal(encoding="no-such-encoding")).isascii()


def test_of_many_ranks_only_the_telling_ones_are_listed():
    run = make_run(ranks=128, steps=60, culprit=77, onset=10)
    text = render(run, make_verdict(run, culprit=77, onset=10), Terminal(width=100))
    assert "77" in next(line for line in text.splitlines() if "culprit" in line)
    assert len(text.splitlines()) < 60
    assert "more ranks" in text


def test_a_run_without_steps_still_tells_its_verdict(run: RunData):
    empty = replace(run, steps=type(run.steps)(run.steps.steps[:0], {}, run.steps.start_mono_ns[:, :0]))
    unclear = replace(healthy(run), verdict="inconclusive", steps=None, reason="no steps were recorded")
    assert "no steps were recorded" in render(empty, unclear, Terminal(width=100))
