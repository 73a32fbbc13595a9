from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from reports_fixtures import EVIL, healthy, make_hostile, make_run, make_verdict
from test_pack import unpack, values_of

from starprof.analysis import diagnose
from starprof.analysis.synthetic import SyntheticRun
from starprof.model.rundata import RunData, Steps
from starprof.model.schema import STEP_SPANS
from starprof.model.verdict import Verdict
from starprof.reports import facts
from starprof.reports.html import render
from starprof.reports.material import Material
from starprof.reports.sections import anatomy


class Page(HTMLParser):
    """Tags with attributes, script contents, and the text that people read."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self.text = ""
        self._inside: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside.append(dict(attrs).get("id") or tag)

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self._inside.pop()

    def handle_data(self, data):
        if self._inside:
            self.scripts[self._inside[-1]] = self.scripts.get(self._inside[-1], "") + data
        else:
            self.text += data


@pytest.fixture(scope="module")
def source(run: RunData, verdict: Verdict) -> str:
    return render(run, verdict)


@pytest.fixture(scope="module")
def page(source: str) -> Page:
    return Page(source)


def test_the_same_run_gives_the_same_bytes(run: RunData, verdict: Verdict, source: str):
    assert render(run, verdict) == source


def test_the_page_refers_to_nothing_outside(page: Page):
    references = [a for _, a in page.tags for name in ("src", "href", "srcset", "data", "action") if name in a]
    assert references == []
    assert "url(" not in page.scripts["style"]
    assert "@import" not in page.scripts["style"]


def policy(page: Page) -> str:
    return next(a["content"] or "" for tag, a in page.tags if tag == "meta" and "http-equiv" in a)


def test_the_policy_forbids_every_request_and_allows_exactly_the_scripts_of_the_page(page: Page):
    allowed = policy(page)
    assert allowed.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src" not in allowed
    assert not re.search(r"unsafe-eval|https?:|\*", allowed)
    digest = base64.b64encode(hashlib.sha256(page.scripts["script"].encode()).digest()).decode()
    assert f"'sha256-{digest}'" in allowed


def test_the_policy_allows_plotly_as_it_lies_in_the_page(page: Page):
    library = gzip.decompress(base64.b64decode(page.scripts["starprof-plotly"]))
    assert f"'sha256-{base64.b64encode(hashlib.sha256(library).digest()).decode()}'" in policy(page)


def test_the_verdict_can_be_read_out_of_the_page(page: Page, verdict: Verdict):
    assert json.loads(page.scripts["starprof-verdict"]) == verdict.to_json()


def test_the_verdict_comes_first_then_findings_then_charts(page: Page):
    sections = [a["id"] for tag, a in page.tags if tag == "section"]
    assert sections == ["verdict", "findings", "advice", "heatmap", "anatomy", "counters", "run", "overhead", "missing"]


def test_without_scripts_the_words_and_numbers_are_there(page: Page):
    for told in (
        "Rank 1 (node n0) makes every step 1.42",
        "own backward 66 ms a step, peers 36 ms",
        "Profile the backward pass of the rank.",
        "The step falls to 71 ms.",
        "no NVIDIA driver",
        "14.2 µs",
    ):
        assert told in page.text
    assert "rank 1 arrived" in page.text


def test_hostile_texts_stay_text(run: RunData, verdict: Verdict):
    page = Page(render(*make_hostile(run, verdict)))
    assert {tag for tag, _ in page.tags} == {tag for tag, _ in Page(render(run, verdict)).tags} | {"p"}
    assert sum(tag == "script" for tag, _ in page.tags) == 4
    assert not [tag for tag, a in page.tags if tag == "img" or any(name.startswith("on") for name in a)]
    assert "\x1b" not in page.text
    assert "\u202e" not in page.text


def test_a_hostile_verdict_survives_as_data(run: RunData, verdict: Verdict):
    bad = make_hostile(run, verdict)
    assert json.loads(Page(render(*bad)).scripts["starprof-verdict"])["run"] == EVIL


def chart(page: Page, anchor: str) -> tuple[dict, bytes]:
    document, arrays = unpack(page.scripts["starprof-data"])
    return document["charts"][anchor], arrays


def test_the_bars_of_a_rank_add_up_to_its_mean_step(page: Page, run: RunData):
    spec, arrays = chart(page, "anatomy")
    whole = values_of(spec["windows"][-1]["spans"], arrays).reshape(len(run.ranks), -1)
    np.testing.assert_allclose(whole.sum(axis=1), facts.column(run, "dur_us").mean(axis=1) / 1e3, rtol=1e-5)


def test_bars_add_up_also_where_spans_were_not_measured(run: RunData, verdict: Verdict):
    columns = {name: run.steps[name].copy() for name in ("dur_us", *STEP_SPANS)}
    columns["forward_us"][:] = np.nan
    columns["unaccounted_us"][:] = np.nan
    columns["dur_us"][2, 5] = np.nan
    blind = replace(run, steps=Steps(run.steps.steps, columns, run.steps.start_mono_ns))
    material = Material(blind, verdict)
    parts = anatomy.span_means(material, np.ones(len(run.steps.steps), dtype=bool))
    np.testing.assert_allclose(parts.sum(axis=1), np.nanmean(columns["dur_us"], axis=1), rtol=1e-9)
    assert parts[0, anatomy.SPANS.index("unaccounted_us")] > 15_000


def test_every_span_of_the_schema_has_a_place_in_the_bars():
    assert set(anatomy.SPANS) == set(STEP_SPANS)
    assert set(anatomy.LABELS) == set(STEP_SPANS)


def test_the_window_of_the_finding_is_offered_beside_the_whole_run(page: Page):
    spec, _ = chart(page, "anatomy")
    assert [w["name"] for w in spec["windows"]] == ["In steps 50-199", "Whole run"]


def test_counters_of_the_cause_are_open_and_the_others_folded(run: RunData, verdict: Verdict):
    source = render(run, make_verdict(run, cause="nic-bandwidth"))
    body = source[source.index('id="counters"') : source.index('id="run"')]
    opened, folded = body.split("<details", 1)
    assert "Network sent" in opened
    assert "Network sent" not in folded
    assert "Involuntary context switches" in folded


def test_samples_that_were_rolled_up_are_told_not_silently_missing(run: RunData, verdict: Verdict):
    samples = {**run.samples, "process_sample_rollup": pd.DataFrame({"node": [0]})}
    assert "rolled up" in Page(render(replace(run, samples=samples), verdict)).text
    assert "rolled up" not in Page(render(run, verdict)).text


def test_the_shaded_time_is_that_of_the_steps_of_the_finding(page: Page, run: RunData):
    spec, _ = chart(page, "counters")
    starts = (run.steps.start_mono_ns[1] - run.steps.start_mono_ns.min()) / 1e9
    assert spec["window"][0] == pytest.approx(starts[50], abs=1e-3)
    assert spec["window"][1] == pytest.approx(spec["end"], abs=0.2)


def test_a_healthy_run_names_nobody(run: RunData):
    page = Page(render(run, healthy(run)))
    assert "No straggler" in page.text
    assert "would stand out" in page.text
    assert chart(page, "heatmap")[0]["culprits"] == []


def test_noise_never_takes_the_full_colour_scale():
    quiet = make_run(onset=10_000)
    spec, _ = chart(Page(render(quiet, healthy(quiet))), "heatmap")
    assert spec["views"][0]["high"] >= 3 * np.nanpercentile(facts.lateness_us(quiet), 99) / 1e3


def test_a_slow_network_is_not_told_as_a_late_rank(run: RunData):
    page = Page(render(run, make_verdict(run, cause="nic-bandwidth")))
    assert "Nobody arrives late here" in page.text
    assert "rank 1 arrived" not in page.text


def test_each_finding_is_framed_in_its_own_steps(run: RunData, verdict: Verdict):
    other = replace(verdict.findings[0], ranks=(3,), onset_step=10, end_step=40, kind="transient")
    spec, _ = chart(Page(render(run, replace(verdict, findings=(*verdict.findings, other)))), "heatmap")
    assert spec["marks"] == [[1, 50, 199], [3, 10, 40]]
    assert spec["onset"] == 50


def test_a_run_without_arrivals_shows_own_time_and_says_so(run: RunData, verdict: Verdict):
    columns = {**run.steps.columns, "arrival_us": np.full_like(run.steps["arrival_us"], np.nan)}
    page = Page(render(replace(run, steps=Steps(run.steps.steps, columns, run.steps.start_mono_ns)), verdict))
    assert [view["name"] for view in chart(page, "heatmap")[0]["views"]] == ["Own time"]
    assert "Only own time can be shown" in page.text


def test_a_run_without_any_record_still_makes_a_page(run: RunData):
    nothing = replace(
        run,
        ranks=(),
        steps=Steps(np.empty(0, np.int64), {}, np.empty((0, 0), np.int64)),
        samples={},
        nodes=pd.DataFrame(),
    )
    unclear = replace(healthy(run), verdict="inconclusive", ranks=0, steps=None, reason="no steps were recorded")
    page = Page(render(nothing, unclear))
    assert "No steps were recorded" in page.text
    assert [a["id"] for tag, a in page.tags if tag == "section"] == ["verdict", "run", "overhead", "missing"]


def test_of_many_steps_the_page_keeps_the_spikes_and_says_that_it_shortened():
    run = make_run(ranks=4, steps=2_500, onset=500)
    page = Page(render(run, make_verdict(run, onset=500)))
    spec, _ = chart(page, "heatmap")
    assert spec["width"] == 3
    assert "largest of 3 steps" in page.text
    assert spec["views"][0]["z"]["shape"] == [4, 834]


def page_of(run):
    return render(run, diagnose(run))


def test_where_ranks_run_is_a_table_with_what_does_not_fit_and_what_binds_it():
    run = SyntheticRun(4, 20, gpus=True, numa_nodes=2, cpu_lists={1: "4-7", 0: "0-3", 2: "4-7", 3: "4-7"})
    page = Page(page_of(run.data()))
    assert "Where ranks run" in page.text
    assert "cores on another NUMA node than its GPU (1 of 4 ranks)" in page.text
    assert "numactl --physcpubind=2-3 --membind=0" in page.text


def test_where_ranks_run_is_left_out_when_nothing_is_known():
    assert "Where ranks run" not in Page(page_of(SyntheticRun(4, 20, counters=False).data())).text


def test_names_of_interfaces_and_cores_can_t_break_out_of_the_table():
    data = SyntheticRun(2, 20, gpus=True, numa_nodes=2).data()
    ranks = tuple(replace(info, cpus=EVIL, detail={"gpu_pci": EVIL}) for info in data.ranks)
    source = page_of(replace(data, ranks=ranks))
    assert EVIL not in source
    assert "Where ranks run" in Page(source).text
