"""What the report tells of synchronisation: from records that the real journal wrote of real policies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from reports_fixtures import EVIL, healthy, make_run
from sync_lab import STAR, Phase, controlled_run
from test_html import Page
from test_pack import unpack, values_of

from starprof.analysis import diagnose
from starprof.analysis.long.choice import diagnosed
from starprof.cli import main
from starprof.control.journal import NATIVE
from starprof.model.rundata import RunData, Steps
from starprof.model.tables.sync import SYNC_NOISE, SYNC_SWITCH, SYNC_UPDATE
from starprof.model.valuelists import gradient_cells
from starprof.reports.averagings import averagings
from starprof.reports.contributions import influence, modes, parts, step_times
from starprof.reports.html import render
from starprof.reports.redact import redacted
from starprof.reports.synchronised import Synchronised, mode_words, synchronised, told_in_short
from starprof.reports.terminal import Terminal
from starprof.reports.terminal import render as summarised
from starprof.store.query import load_run
from starprof.store.save import save_run

SLOW = 5


@pytest.fixture(scope="module")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    """Eight ranks, one of them slow from update 60 on: native, m-sync, m-sync-fold, asgd, and native again."""
    return controlled_run(tmp_path_factory.mktemp("controlled"))


@pytest.fixture(scope="module")
def sync(controlled: RunData) -> Synchronised:
    found = synchronised(controlled)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def page(controlled: RunData) -> Page:
    return Page(render(controlled, diagnose(controlled)))


def frame_of(table, *rows) -> pd.DataFrame:
    return pd.DataFrame([[row.get(name) for name in table.names] for row in rows], columns=list(table.names))


def test_a_run_without_control_has_no_section_and_no_line(run: RunData, verdict):
    assert synchronised(run) is None
    assert "synchronisation" not in [a.get("id") for tag, a in Page(render(run, verdict)).tags if tag == "section"]
    assert "Synchronisation" not in summarised(run, verdict, Terminal())


def test_the_run_is_cut_where_the_mode_changed(sync: Synchronised):
    assert [(s.mode, s.updates) for s in sync.stretches] == [
        ("native SSGD", 160),
        ("m-sync (m = 7)", 260),
        ("m-sync-fold (m = 6)", 240),
        ("asgd", 900),
        ("native SSGD", 150),
    ]
    assert sync.stretches[0].begin_s == 0.0
    assert all(a.end_s == b.begin_s for a, b in zip(sync.stretches, sync.stretches[1:], strict=False))
    assert sum(s.seconds for s in sync.stretches) == pytest.approx(sync.length_s)


def test_step_times_on_both_sides_of_a_switch_are_those_of_the_modes(sync: Synchronised):
    first, *others = sync.switches
    assert first.before_us == pytest.approx(190_000, rel=0.05)
    assert first.after_us == pytest.approx(68_000, rel=0.05)
    assert [s.before_us for s in others] == pytest.approx([68_000] * 3, rel=0.05)
    assert (first.asked_by, first.reason) == ("advisor", STAR[1].reason)


def test_only_steps_between_two_switches_are_looked_at(controlled: RunData):
    switches = controlled.sync_switches
    near = switches.iloc[[0]].assign(mono_ns=switches["mono_ns"].iloc[0] - 500_000_000, version=158, to_mode="eager")
    sync = synchronised(replace(controlled, sync_switches=pd.concat([near, switches])))
    assert [s.to_mode for s in sync.switches][:2] == ["eager (m = 7)", "m-sync (m = 7)"]
    assert sync.switches[0].after_us == pytest.approx(190_000, rel=0.1)  # of the steps before the next switch
    assert sync.switches[1].after_us == pytest.approx(68_000, rel=0.05)


def test_staleness_and_progress_are_told_per_mode(sync: Synchronised):
    native, m_sync, fold, asgd = modes(sync)
    assert (native.native, native.recorded, native.updates) == (True, 0, 310)
    assert m_sync.stale.tolist() == [1, 0, 0, 0, 0]
    assert fold.stale[0] < 1.0
    assert fold.staleness_max == int(sync.run.sync_updates.query("mode == 'm-sync-fold'")["staleness_max"].max())
    assert asgd.stale[3:].sum() > 0.9  # seven or eight others in between
    assert asgd.gradients == 1
    assert m_sync.progress == pytest.approx(m_sync.updates / m_sync.seconds)
    assert asgd.progress == pytest.approx(asgd.updates / 8 / asgd.seconds)
    assert sum(mode.seconds for mode in modes(sync)) == pytest.approx(sync.length_s)


def test_a_rank_that_is_left_out_shows_in_its_part(sync: Synchronised):
    part = parts(sync)
    others = [rank for rank in range(8) if rank != SLOW]
    assert part.contributed[SLOW, 1] == 0.0
    assert part.used[SLOW, 1] == 0.0
    assert part.contributed[others, 1].tolist() == [1.0] * 7
    assert (part.used[others, 1:] > 0.97).all()
    assert 0.3 < part.contributed[SLOW, 2] < 0.4
    assert part.skipped[SLOW, 1:].min() > 0.55
    assert part.skipped[others, 1:].max() == 0.0
    assert part.lag[SLOW, 1] > 2.5
    assert np.isnan(part.contributed[:, 0]).all()


def test_its_part_over_time_is_empty_while_it_is_left_out(sync: Synchronised):
    edges = np.linspace(0.0, sync.length_s, 201)
    strip = influence(sync, edges)
    middle = (edges[:-1] + edges[1:]) / 2
    in_m_sync = (middle > sync.stretches[1].begin_s) & (middle < sync.stretches[1].end_s)
    assert (strip[SLOW, in_m_sync] == 0).all()
    assert (strip[0, in_m_sync] == 1).all()
    assert (strip[:, middle < sync.stretches[0].end_s] == 1).all()
    assert np.isfinite(strip).all()


def test_step_times_are_taken_by_time_not_by_number(sync: Synchronised):
    """The slow rank makes fewer steps: its last ones are of the same time as the others' last ones."""
    edges = np.linspace(0.0, sync.length_s, 101)
    median, slowest = step_times(sync, edges)
    middle = (edges[:-1] + edges[1:]) / 2
    healed = middle > sync.stretches[-1].begin_s + 1
    in_m_sync = (middle > sync.stretches[1].begin_s + 1) & (middle < sync.stretches[1].end_s - 1)
    assert slowest[healed].max() < 90_000
    assert slowest[in_m_sync].min() > 160_000
    assert median[in_m_sync].max() < 80_000


def test_of_a_sampled_record_the_same_is_told(controlled: RunData, sync: Synchronised):
    """Of very long runs a random part of the records is read (`starprof.store.query`): counts stand for all."""
    rng = np.random.default_rng(3)
    updates, steps = controlled.sync_updates, controlled.sync_steps
    sampled = replace(
        controlled,
        sync_updates=updates[rng.random(len(updates)) < 0.5],
        sync_steps=steps[rng.random(len(steps)) < 0.5],
    )
    found = synchronised(sampled)
    assert [s.updates for s in found.stretches] == [s.updates for s in sync.stretches]
    np.testing.assert_allclose(parts(found).used[:, 1:], parts(sync).used[:, 1:], atol=0.15)
    assert modes(found)[3].recorded < 600
    assert modes(found)[3].progress == pytest.approx(modes(sync)[3].progress)
    assert f"{modes(found)[3].recorded} recorded" in Page(render(sampled, diagnose(sampled))).text


def test_of_a_round_that_was_reduced_again_only_the_last_try_counts(controlled: RunData):
    updates = controlled.sync_updates
    tried = updates.iloc[[10]].assign(
        retries=0, mono_ns=1, **gradient_cells(int(updates["version"].iloc[10]), [(SLOW, 0, 0, 1, 1.0)])
    )
    again = pd.concat([updates.assign(retries=np.where(np.arange(len(updates)) == 10, 1, 0)), tried])
    sync = synchronised(replace(controlled, sync_updates=again))
    assert parts(sync).contributed[SLOW, 1] == 0.0
    assert modes(sync)[1].again == pytest.approx(1 / 260)


def test_a_damaged_list_costs_its_own_update_only(controlled: RunData):
    updates = controlled.sync_updates.copy()
    updates.loc[updates.index[:3], "weights"] = ["nonsense", "0.1*3", None]
    sync = synchronised(replace(controlled, sync_updates=updates))
    assert parts(sync).contributed[0, 1] == pytest.approx(257 / 260)


def test_a_switch_that_did_not_come_about_is_told_and_changes_nothing(controlled: RunData, sync: Synchronised):
    wish = controlled.sync_switches.iloc[[0]].assign(version=None, reason="rank 3 did not answer")
    told = replace(controlled, sync_switches=pd.concat([controlled.sync_switches, wish]))
    assert synchronised(told).stretches == sync.stretches
    page = Page(render(told, diagnose(told)))
    assert "did not come about" in page.text
    assert "rank 3 did not answer" in page.text
    assert len(chart(page)["switches"]) == 4


def test_a_wish_that_could_not_be_had_is_told_of_a_run_that_has_only_native_steps(controlled: RunData):
    reason = "the model is in FSDP without replicas: only resource actions are possible"
    wish = controlled.sync_switches.iloc[[0]].assign(version=None, reason=reason)
    page = Page(
        render(replace(controlled, sync_switches=wish, sync_updates=None, sync_steps=None), healthy(controlled))
    )
    assert "did not come about" in page.text
    assert reason in page.text


def test_two_coordinators_that_tell_of_one_switch_have_it_counted_once(controlled: RunData, sync: Synchronised):
    twice = pd.concat([controlled.sync_switches, controlled.sync_switches.assign(epoch=2)])
    assert len(synchronised(replace(controlled, sync_switches=twice)).switches) == len(sync.switches)


def test_without_a_recorded_switch_the_updates_tell_the_modes(controlled: RunData):
    sync = synchronised(replace(controlled, sync_switches=None))
    assert [s.mode for s in sync.stretches] == ["native SSGD", "m-sync (m = 7)", "m-sync-fold (m = 6)", "asgd"]
    assert sync.stretches[0].updates == 160


def test_records_without_any_step_are_told_too(controlled: RunData):
    nothing = np.zeros((8, 0))
    bare = replace(controlled, steps=Steps(np.zeros(0, np.int64), {"dur_us": nothing}, nothing.astype(np.int64)))
    sync = synchronised(bare)
    assert [s.mode for s in sync.stretches][:2] == ["native SSGD", "m-sync (m = 7)"]
    assert sync.length_s < 100
    assert np.isnan(sync.switches[0].before_us)
    assert "m-sync (m = 7)" in Page(render(bare, healthy(bare))).text


def test_switches_without_any_round_are_told_too(controlled: RunData):
    sync = synchronised(replace(controlled, sync_updates=None, sync_steps=None))
    assert [s.updates for s in sync.stretches][:2] == [160, 260]
    assert np.isnan(modes(sync)[1].progress)
    assert "Each rank" not in Page(render(sync.run, diagnose(sync.run))).text


def test_a_long_run_that_is_shown_as_means_keeps_its_switches(controlled: RunData, sync: Synchronised):
    shown, verdict = diagnosed(controlled, most=2_000)
    found = synchronised(shown)
    assert shown.steps.steps.shape[0] < controlled.steps.steps.shape[0]
    assert [s.mode for s in found.stretches] == [s.mode for s in sync.stretches]
    assert found.stretches[-1].updates == pytest.approx(150, abs=10)
    assert "m-sync (m = 7)" in Page(render(shown, verdict)).text


def chart(page: Page):
    return unpack(page.scripts["starprof-data"])[0]["charts"]["synchronisation"]


def test_the_picture_holds_both_lines_the_strip_and_the_switches(page: Page, sync: Synchronised):
    document, arrays = unpack(page.scripts["starprof-data"])
    spec = document["charts"]["synchronisation"]
    rows, bins = spec["part"]["shape"]
    assert rows == 8
    strip = values_of(spec["part"], arrays).reshape(rows, bins)
    at = int(30 / spec["end"] * bins)
    assert (strip[0, at], strip[SLOW, at]) == (255, 1)
    assert values_of(spec["median"], arrays)[at] == pytest.approx(68, rel=0.1)
    assert values_of(spec["slowest"], arrays)[at] == pytest.approx(186, rel=0.15)
    assert [label for _, _, label in spec["switches"]] == [
        "m-sync (m = 7), advisor",
        "m-sync-fold (m = 6), user",
        "asgd, user",
        "native SSGD, coordinator",
    ]
    assert [at for at, _, _ in spec["switches"]] == pytest.approx([s.at_s for s in sync.switches], abs=1e-3)


def test_words_and_numbers_stand_in_the_page_without_scripts(page: Page, sync: Synchronised):
    assert told_in_short(sync) in page.text
    assert told_in_short(sync).endswith("; 4 switches")
    for told in ("no proof that the switch did it", STAR[1].reason, "stale 4-7", "data used", "190 ms"):
        assert told in page.text
    assert (
        "The least part: rank 5 under m-sync (m = 7), in 0 % of the updates; 0 % of its batches were used." in page.text
    )


def test_the_section_follows_the_heatmap(page: Page):
    sections = [a["id"] for tag, a in page.tags if tag == "section"]
    assert sections[sections.index("heatmap") + 1] == "synchronisation"


def test_the_summary_tells_in_one_line_which_modes_ran_how_long(controlled: RunData, sync: Synchronised):
    text = summarised(controlled, diagnose(controlled), Terminal(width=110))
    (line,) = [line for line in text.splitlines() if line.startswith("Synchronisation:")]
    assert line == f"Synchronisation: {told_in_short(sync)}"


def test_the_verdict_names_the_same_rank_with_and_without_records_of_control_and_its_form_is_the_same(
    controlled: RunData, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    told = []
    without = replace(controlled, sync_updates=None, sync_switches=None, sync_steps=None)
    for name, run in (("with", controlled), ("without", without)):
        (tmp_path / name).mkdir()
        save_run(run, tmp_path / name / "job.starprof")
        assert main(["summary", str(tmp_path / name / "job.starprof"), "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert told[0].keys() == told[1].keys()
    assert [f["ranks"] for f in told[0]["findings"]] == [f["ranks"] for f in told[1]["findings"]] == [[5]]
    assert "made in rounds" in told[0]["reason"], "else all steps count as native ones"
    assert "made in rounds" not in told[1]["reason"]


def test_the_same_records_give_the_same_page(controlled: RunData):
    verdict = diagnose(controlled)
    assert render(controlled, verdict) == render(controlled, verdict)


def test_of_very_many_modes_those_that_ran_longest_are_told(tmp_path: Path):
    phases = [Phase("deadline", 3 + at, {"after_s": 0.01 + at / 1000}) for at in range(40)]
    run = controlled_run(tmp_path, (Phase(NATIVE, 30), *phases))
    sync = synchronised(run)
    assert len(told_in_short(sync)) < 250
    assert ", 36 more " in told_in_short(sync)
    page = Page(render(run, diagnose(run)))
    assert "17 modes of a shorter time are not shown" in page.text
    assert "Nor are 34 modes of a shorter time" in page.text


def test_hostile_modes_and_reasons_stay_text(controlled: RunData):
    switches = controlled.sync_switches.assign(
        to_mode=EVIL, from_mode=EVIL, asked_by=EVIL, reason=EVIL, to_options='{"<b>": "</script>"}'
    )
    updates = controlled.sync_updates.assign(mode=EVIL, options="{")
    bad = replace(controlled, sync_switches=switches, sync_updates=updates)
    page = Page(render(bad, diagnose(bad)))
    assert sum(tag == "script" for tag, _ in page.tags) == 4
    assert not [tag for tag, a in page.tags if tag in ("img", "b") or any(name.startswith("on") for name in a)]
    assert "\x1b" not in page.text + summarised(bad, diagnose(bad), Terminal())


def test_what_a_reason_tells_of_machines_is_redacted(controlled: RunData):
    told = replace(
        controlled,
        sync_switches=controlled.sync_switches.assign(reason="/home/me/job on 10.1.2.3 is slow", asked_by="me"),
    )
    clean, _ = redacted(told, diagnose(told))
    assert set(clean.sync_switches["reason"]) == {"[path] on [address] is slow"}


def test_where_all_have_an_even_part_nobody_is_named(tmp_path):
    run = controlled_run(tmp_path, (Phase(NATIVE, 20), Phase("ssgd", 40)), factor=1.0)
    page = Page(render(run, healthy(run)))
    assert "Each rank's part" in page.text
    assert "The least part" not in page.text


def test_many_ranks_are_shown_by_the_least_part_first(tmp_path):
    phases = (Phase(NATIVE, 20), Phase("m-sync", 40, {"m": 60}))
    run = controlled_run(tmp_path, phases, ranks=64, since=0, factor=5.0)
    source = render(run, diagnose(run))
    body = source[source.index("<summary>Each rank") : source.index('id="anatomy"')]
    assert "40 ranks with a larger part are not shown" in body
    first = body[body.index("<tbody>") :]
    assert first.startswith(f'<tbody><tr class="culprit"><td class="num">{SLOW}</td><td class="num">0 %</td>')


def test_the_section_adds_little_to_the_page(tmp_path):
    phases = (Phase(NATIVE, 20), Phase("m-sync-fold", 60, {"m": 230}))
    run = controlled_run(tmp_path, phases, ranks=256)
    verdict = diagnose(run)
    without = replace(run, sync_updates=None, sync_switches=None, sync_steps=None)
    assert len(render(run, verdict)) - len(render(without, verdict)) < 60_000


@pytest.mark.parametrize(
    ("mode", "options", "words"),
    [
        (NATIVE, None, "native SSGD"),
        ("asgd", None, "asgd"),
        ("m-sync", '{"m": 3}', "m-sync (m = 3)"),
        ("m-sync", "[3]", "m-sync"),
        ("m-sync", "{", "m-sync"),
        (None, None, "unknown"),
    ],
)
def test_modes_are_named_with_their_options(mode, options, words):
    assert mode_words(mode, options) == words


def test_ranks_that_the_run_does_not_hold_are_left_out():
    run = make_run(ranks=2, steps=50)
    start = int(run.steps.start_mono_ns[0, 10])
    update = {"node": 7, "mono_ns": start, "attempt": 0, "version": 10, "epoch": 1, "retries": 0, "mode": "asgd"}
    update |= gradient_cells(10, [(0, 0, 10, 1, 0.5), (9, 0, 10, 1, 0.5)])
    switch = {"node": 7, "mono_ns": start, "version": 10, "from_mode": NATIVE, "to_mode": "asgd", "asked_by": "user"}
    run = replace(run, sync_updates=frame_of(SYNC_UPDATE, update), sync_switches=frame_of(SYNC_SWITCH, switch))
    sync = synchronised(run)
    assert parts(sync).contributed[:, 1].tolist() == [1.0, 0.0]
    assert "asgd" in Page(render(run, healthy(run))).text


def noise_rows(*scales: float | None) -> pd.DataFrame:
    same = {"node": 0, "attempt": 0, "mode": NATIVE, "low": 2.0, "high": None}
    return frame_of(
        SYNC_NOISE, *({**same, "mono_ns": at, "version": 100 * at, "scale": s} for at, s in enumerate(scales))
    )


def noise_told(run: RunData, scales: list[float | None]) -> str:
    return render(replace(run, sync_noise=noise_rows(*scales)), diagnose(run))


def test_the_gradient_noise_scale_is_told_with_its_interval_and_its_movement(controlled: RunData):
    page = noise_told(controlled, [None, *range(1, 25)])
    assert "Gradient noise scale at the end: 24 batches of one rank (95 %: 2 or more), of 25 updates" in page
    assert "A quarter into them it was 7" in page
    assert "no signal was seen in 2 updates" in noise_told(controlled, [None, None])
    assert "Gradient noise scale" not in render(controlled, diagnose(controlled))


def test_a_job_that_stayed_native_is_told_of_its_noise_too(run: RunData, verdict):
    page = render(replace(run, sync_noise=noise_rows(3.0)), verdict)
    assert "Gradient noise scale at the end: 3 batches" in page


def test_noise_is_saved_with_the_run(controlled: RunData, tmp_path: Path):
    save_run(replace(controlled, sync_noise=noise_rows(3.0, 4.0)), tmp_path / "copy.starprof")
    assert load_run(tmp_path / "copy.starprof").sync_noise["scale"].tolist() == [3.0, 4.0]


def averaged(controlled: RunData) -> RunData:
    """The run, with modes of states in the place of others: four averagings, and three with groups."""
    rows = []
    for number in range(8):
        mode = "local-sgd" if number < 5 else "hierarchical"
        known = {"period": 8} if number < 5 else {"period": 4, "groups": [[0, 1, 2, 3], [4, 5, 6, 7]]}
        steps = 1 if not number else 6 if number == 4 else known["period"]
        cells = gradient_cells(160 + number, [(rank, number, 160 + number, 32, steps / 8) for rank in range(8)])
        at = int(controlled.sync_switches["mono_ns"].iloc[0]) + number * 1_000_000_000
        rows.append(
            {"node": 0, "mono_ns": at, "attempt": 0, "version": 160 + number, "epoch": 1, "retries": 0, "mode": mode}
            | {"options": json.dumps(known), **cells}
        )
    return replace(controlled, sync_updates=frame_of(SYNC_UPDATE, *rows), sync_switches=None, sync_steps=None)


def test_rounds_of_states_are_told_as_averagings(controlled: RunData):
    run = averaged(controlled)
    told = averagings(synchronised(run))
    assert [(t.mode.partition(" ")[0], t.count, t.period) for t in told] == [
        ("local-sgd", 4, 8),
        ("hierarchical", 3, 4),
    ]
    assert (told[0].steps, told[0].groups) == (7.5, ())
    assert told[1].groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    page = Page(render(run, healthy(run)))
    assert "4 averagings of all ranks' states, after 7.5 steps on average, due after 8; until then every" in page.text
    assert "until then ranks together in groups (0, 1, 2, 3 | 4, 5, 6, 7)" in page.text


@pytest.mark.parametrize("options", ["{", "[]", '{"period": "x", "groups": 3}', '{"groups": [["a"]]}', None])
def test_damaged_options_of_modes_of_states_cost_their_own_words_only(controlled: RunData, options: str | None):
    run = averaged(controlled)
    (told, *_) = averagings(synchronised(replace(run, sync_updates=run.sync_updates.assign(options=options))))
    assert (told.period, told.groups) == (None, ())


def test_gradients_are_no_averagings(sync: Synchronised):
    assert averagings(sync) == ()
