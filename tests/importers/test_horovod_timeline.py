"""Horovod timelines: readiness per rank, and who is named for being ready last."""

import json

import pytest

from starprof.analysis import diagnose
from starprof.errors import InputError
from starprof.importers.load import load
from starprof.importers.traces import horovod_timeline


def timeline(ready_us, *, steps=30, tensors=6, ranks=4, kind="ALLREDUCE"):
    """Events of a timeline; `ready_us(rank, step, tensor)` after the step's begin."""
    events = [{"ph": "i", "name": "CYCLE_START", "ts": 1, "s": "g"}]
    for tensor in range(tensors):
        events.append({"name": "process_name", "ph": "M", "pid": tensor, "args": {"name": f"gradient_{tensor}"}})
    for step in range(steps):
        for tensor in range(tensors):
            begin = step * 1_000_000
            ready = {r: begin + ready_us(r, step, tensor) for r in range(ranks)}
            events.append({"ph": "B", "name": f"NEGOTIATE_{kind}", "ts": min(ready.values()), "pid": tensor})
            marks = [{"ph": "X", "name": str(r), "ts": at, "pid": tensor, "dur": 0} for r, at in ready.items()]
            events += sorted(marks, key=lambda mark: mark["ts"])
            last = max(ready.values())
            events.append({"ph": "E", "ts": last, "pid": tensor})
            events.append({"ph": "B", "name": kind, "ts": last + 5, "pid": tensor})
            events.append({"ph": "E", "ts": last + 900, "pid": tensor})
    return events


def written(events):
    """As Horovod writes them: one a line, and no bracket at the end."""
    return "[\n" + "".join(json.dumps(event) + ",\n" for event in events)


@pytest.fixture
def read(tmp_path):
    """Write a text to a file and read it."""

    def write_and_load(text):
        (tmp_path / "timeline.json").write_text(text)
        return load([str(tmp_path / "timeline.json")])

    return write_and_load


def late_rank_2(rank, step, tensor):
    return 100_000 + 20_000 * tensor + 7 * rank + (150_000 if rank == 2 else 0)


def test_a_call_lasts_from_the_rank_being_ready_to_the_last_one_being_ready(read):
    run = read(written(timeline(late_rank_2, steps=2, tensors=1)))
    rows = run.collectives[run.collectives["step"] == 0].set_index("rank")
    assert rows["dur_us"].tolist() == [150_014, 150_007, 0, 149_993]
    assert rows["sequence"].tolist() == [0] * 4
    assert rows["name"].unique().tolist() == ["all_reduce"]
    assert rows["ranks"].unique().tolist() == ["0-3"]


def test_the_rank_that_is_always_ready_last_is_named(read):
    verdict = diagnose(read(written(timeline(late_rank_2))))
    assert verdict.verdict == "straggler"
    assert [f.ranks for f in verdict.findings if f.ranks] == [(2,)]


def test_ranks_that_are_last_in_turn_are_not_named(read):
    def in_turn(rank, step, tensor):
        return 100_000 + 20_000 * tensor + (150_000 if rank == (step * 7) % 4 else 0)

    verdict = diagnose(read(written(timeline(in_turn))))
    assert verdict.verdict != "straggler"
    assert not any(f.ranks for f in verdict.findings)


def test_the_same_events_as_a_compact_list_give_the_same_rows(read):
    events = timeline(late_rank_2, steps=3)
    lines, compact = read(written(events)), read(json.dumps(events))
    assert lines.collectives.equals(compact.collectives)


def test_events_that_follow_each_other_on_one_line_of_any_length_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(horovod_timeline, "CHUNK_BYTES", 1000)
    events = timeline(late_rank_2, steps=20)
    head = [{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 17}}]
    tensors = "".join(json.dumps(e) + ",\n" for e in head + events[:7])
    (tmp_path / "new.json").write_text("[\n" + tensors + ",".join(json.dumps(e) for e in events[7:]) + "]")
    (tmp_path / "old.json").write_text(written(events))
    new, old = (load([str(tmp_path / name)]) for name in ("new.json", "old.json"))
    assert new.collectives.equals(old.collectives)
    assert len(new.collectives) == 20 * 6 * 4


def test_an_event_that_can_t_be_read_takes_no_other_one_with_it(read):
    events = timeline(late_rank_2, steps=4, tensors=1)
    texts = [json.dumps(e) for e in events]
    texts.insert(8, '{"ph": "X", "name": 5, "ts": [], "pid": 1}')
    assert read("[" + ",".join(texts) + "]").collectives.equals(read(written(events)).collectives)


def test_negotiations_without_marks_are_told_with_the_way_to_see_them(read):
    events = timeline(late_rank_2, steps=5, tensors=1)
    kept = [e for e in events if not (e["ph"] == "X" and e["ts"] > 2_000_000)]
    run = read(written(kept))
    assert run.unavailable["source"].str.contains("readiness in 3 of 5").any()
    assert run.unavailable["reason"].str.contains("HOROVOD_CACHE_CAPACITY=0").any()


def test_a_negotiation_that_never_ends_is_no_collective(read):
    events = timeline(late_rank_2, steps=3, tensors=1)
    cut = events[: next(i for i, e in enumerate(events) if e["ph"] == "E" and e["ts"] > 2_000_000)]
    run = read(written(cut))
    assert run.collectives["step"].max() == 1
    assert run.unavailable["source"].str.contains("1 negotiations").any()


def test_two_timelines_are_refused(tmp_path):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(written(timeline(late_rank_2, steps=2)))
    with pytest.raises(InputError, match="name the one that rank 0"):
        load([str(tmp_path)])


@pytest.mark.parametrize(
    "text",
    [
        '[\n{"ph": "i", "name": "CYCLE_START", "ts": 1, "s": "g"},\n',
        '[\n{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": "soon", "pid": 1},\n',
        '[\n{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1, "pid": [1]},\n',
        '[\n{"NEGOTIATE_": ' + "[" * 100_000,
        '[\n{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1, "pid": 1},\n{"ph": "E", "ts": 5, "pid": 1}]',
    ],
)
def test_timelines_without_a_whole_negotiation_are_refused_in_one_line(read, text):
    with pytest.raises(InputError) as refused:
        read(text)
    assert "\n" not in str(refused.value)


def test_the_public_sample_is_read_and_blames_nobody(public_data):
    run = load([str(public_data("profiler_samples") / "horovod_timeline_small.json")])
    assert [r.rank for r in run.ranks] == [4, 5, 7]
    verdict = diagnose(run)
    assert verdict.verdict == "inconclusive"
    assert not any(f.ranks for f in verdict.findings)
