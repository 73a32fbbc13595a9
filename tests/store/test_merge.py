"""Merging: nodes, ranks and clocks of recordings that were made apart are right, or it is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_parts import new_spool, rows_frame, rows_of, send

from starprof.errors import NoDataError, RunFileError, UsageError
from starprof.model.schema import BY_NAME
from starprof.spool.layout import Spool
from starprof.store.causality import Offset, offset_of
from starprof.store.ingest import fold
from starprof.store.merge import merge
from starprof.store.query import load_run
from starprof.store.runfile import RunFile, arrow_rows

US = 1000


def recording(
    folder: Path,
    name: str,
    ranks: list[int],
    *,
    node: int = 0,
    boot: str = "",
    world_size: int = 4,
    shift_ns: int = 0,
    device: str = "cpu",
    command: str = "train.py",
    **extra: list[dict[str, object]],
) -> Path:
    """A run file of one node whose clock reads `shift_ns` more than the first one's."""
    run_file = folder / f"{name}.starprof"
    spool = new_spool(run_file, run_id=name)
    known = json.loads(spool.run_json.read_text())
    spool.run_json.write_text(json.dumps({**known, "command": command, "started_unix_ns": len(name), "exit_code": 0}))
    detail = json.dumps({"netns": 1})
    tables = {
        "node": [{"node": node, "host": boot or name, "boot_id": boot or name, "detail": detail}],
        "rank": [
            {"attempt": 0, "rank": r, "node": node, "world_size": world_size, "device": device, "framework": "ddp"}
            for r in ranks
        ],
        "step": [
            {
                "attempt": 0,
                "rank": r,
                "step": s,
                "start_mono_ns": 10**12 + s * 10_000 * US + shift_ns,
                "arrival_us": 6000 + 100 * r,
                "dur_us": 10_000,
            }
            for s in range(20)
            for r in ranks
        ],
        **extra,
    }
    send(spool, *(rows_frame(t, 0, *rows, stream=f"{name}-{t}/{t}") for t, rows in tables.items()))
    fold(spool, run_file, final=True)
    shutil.rmtree(spool.root)
    return run_file


def test_recordings_of_two_nodes_become_one_run(tmp_path: Path) -> None:
    a = recording(tmp_path, "a", [0, 1])
    b = recording(tmp_path, "bb", [2, 3])
    report = merge([a, b], tmp_path / "out.starprof")
    run = load_run(tmp_path / "out.starprof")
    assert (report.nodes, report.ranks, report.notes) == (2, 4, ())
    assert [(r.rank, r.node, r.host) for r in run.ranks] == [(0, 0, "a"), (1, 0, "a"), (2, 1, "bb"), (3, 1, "bb")]
    assert run.steps["dur_us"].shape == (4, 20)
    assert (run.info["name"], run.info["run_id"], run.info["started_unix_ns"]) == ("out", "a", 1)
    assert rows_of(tmp_path / "out.starprof", "SELECT world_size FROM attempt") == [(4,)]


def test_the_inputs_stay_as_they_were(tmp_path: Path) -> None:
    files = [recording(tmp_path, "a", [0, 1]), recording(tmp_path, "b", [2, 3])]
    before = [f.read_bytes() for f in files]
    merge(files, tmp_path / "out.starprof")
    assert [f.read_bytes() for f in files] == before


def test_a_spool_that_was_never_folded_in_can_be_merged_and_is_left_alone(tmp_path: Path) -> None:
    a = recording(tmp_path, "a", [0])
    spool = Spool(tmp_path / "left.spool")
    spool.create()
    send(spool, rows_frame("rank", 0, {"attempt": 0, "rank": 1, "node": 1}), source="n1")
    before = sorted(spool.root.rglob("*"))
    assert merge([a, spool.root], tmp_path / "out.starprof").ranks == 2
    assert sorted(spool.root.rglob("*")) == before


def test_node_ids_that_do_not_clash_are_kept(tmp_path: Path) -> None:
    a = recording(tmp_path, "a", [0], node=3, boot="same")
    b = recording(tmp_path, "b", [1], node=5, boot="same")
    merge([a, b], tmp_path / "out.starprof")
    assert [r.node for r in load_run(tmp_path / "out.starprof").ranks] == [3, 5]


def test_two_recordings_of_one_node_share_it_and_keep_their_devices_apart(tmp_path: Path) -> None:
    nics = [{"node": 0, "nic": 0, "name": "eth0"}, {"node": 0, "nic": 1, "name": "eth1"}]
    samples = [{"node": 0, "mono_ns": 1, "nic": 1, "rx_bytes": 5}]
    a = recording(tmp_path, "a", [0], boot="same", nic=nics, nic_sample=samples)
    b = recording(tmp_path, "b", [1], boot="same", nic=nics, nic_sample=samples)
    merge([a, b], tmp_path / "out.starprof")
    assert rows_of(tmp_path / "out.starprof", "SELECT node, host FROM node") == [(0, "same")]
    names = rows_of(tmp_path / "out.starprof", "SELECT nic, name FROM nic ORDER BY nic")
    assert names == [(0, "eth0"), (1, "eth1"), (2, "eth0"), (3, "eth1")]
    assert rows_of(tmp_path / "out.starprof", "SELECT nic FROM nic_sample ORDER BY nic") == [(1,), (3,)]


def test_samples_events_and_gaps_follow_their_node(tmp_path: Path) -> None:
    extra = {
        "cpu_sample": [{"node": 0, "mono_ns": 1, "cpu": -1, "user_us": 7}],
        "event": [{"node": 0, "kind": "gc"}],
        "gap": [{"node": None, "source": "x"}, {"node": 0, "source": "y"}],
    }
    a, b = recording(tmp_path, "a", [0]), recording(tmp_path, "b", [1], **extra)
    merge([a, b], tmp_path / "out.starprof")
    assert rows_of(tmp_path / "out.starprof", "SELECT node FROM cpu_sample UNION ALL SELECT node FROM event") == [
        (1,),
        (1,),
    ]
    assert rows_of(tmp_path / "out.starprof", "SELECT node FROM gap ORDER BY source") == [(None,), (1,)]


def test_clashing_ranks_are_refused(tmp_path: Path) -> None:
    a, b = recording(tmp_path, "a", [0, 1]), recording(tmp_path, "b", [1, 2])
    with pytest.raises(UsageError, match=r"a\.starprof and .*b\.starprof both hold rank 1 of attempt 0"):
        merge([a, b], tmp_path / "out.starprof")
    with pytest.raises(UsageError, match="both hold rank 0"):
        merge([a, a], tmp_path / "out.starprof")
    assert not (tmp_path / "out.starprof").exists()
    assert list(tmp_path.glob("*.merging*")) == []


def test_jobs_of_different_size_are_refused(tmp_path: Path) -> None:
    a, b = recording(tmp_path, "a", [0]), recording(tmp_path, "b", [1], world_size=8)
    with pytest.raises(UsageError, match=r"of a job of 4 ranks, .* of one of 8"):
        merge([a, b], tmp_path / "out.starprof")


def test_what_is_doubtful_is_said(tmp_path: Path) -> None:
    a, b = recording(tmp_path, "a", [0]), recording(tmp_path, "b", [1], command="other.py")
    notes = merge([a, b], tmp_path / "out.starprof").notes
    assert notes == (
        "the recordings are of 2 different commands; the first is kept",
        "only 2 of 4 ranks of attempt 0 are in the recordings",
    )


def test_an_existing_output_is_not_overwritten(tmp_path: Path) -> None:
    a = recording(tmp_path, "a", [0])
    with pytest.raises(UsageError, match="exists"):
        merge([a], a)


def test_a_folder_that_is_no_spool_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match="neither a run file nor a spool"):
        merge([tmp_path], tmp_path / "out.starprof")


def test_recordings_without_any_rank_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NoDataError, match="no rank"):
        merge([empty_recording(tmp_path)], tmp_path / "out.starprof")


def empty_recording(folder: Path) -> Path:
    run_file = folder / "empty.starprof"
    fold(new_spool(run_file), run_file, final=True)
    return run_file


def test_nodes_of_one_boot_have_one_clock(tmp_path: Path) -> None:
    a = recording(tmp_path, "a", [0], node=0, boot="same")
    b = recording(tmp_path, "b", [1], node=1, boot="same")
    merge([a, b], tmp_path / "out.starprof")
    assert rows_of(tmp_path / "out.starprof", "SELECT node, offset_ns, error_ns, method FROM clock") == [
        (1, 0, 0, "same-boot")
    ]


def test_another_boots_clock_is_calibrated_from_the_collectives(tmp_path: Path) -> None:
    shift_ns = 987_654_321_000
    a, b = recording(tmp_path, "a", [0, 1]), recording(tmp_path, "b", [2, 3], shift_ns=shift_ns)
    merge([a, b], tmp_path / "out.starprof")
    offset, error = load_run(tmp_path / "out.starprof").clock_offset_ns[1]
    assert abs(offset + shift_ns) <= error
    assert error == (10_000 - 6_100 + 10_000 - 6_300) * US // 2
    assert rows_of(tmp_path / "out.starprof", "SELECT method FROM clock") == [("causality",)]


def test_measured_offsets_are_kept(tmp_path: Path) -> None:
    ping = [{"node": 0, "offset_ns": 0, "error_ns": 0}, {"node": 1, "offset_ns": 77, "error_ns": 3, "method": "ping"}]
    a, b = recording(tmp_path, "a", [0], clock=ping), recording(tmp_path, "b", [1], node=1)
    merge([a, b], tmp_path / "out.starprof")
    assert load_run(tmp_path / "out.starprof").clock_offset_ns == {0: (0, 0), 1: (77, 3)}


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ({"device": "cuda"}, "no step with a blocking all-reduce of CPU ranks"),
        ({"step": [{"attempt": 0, "rank": 1, "step": 0, "start_mono_ns": 1, "dur_us": 9}]}, "no step with a blocking"),
        (
            {
                "step": [
                    {"attempt": 0, "rank": 1, "step": s, "start_mono_ns": s * 10**9, "arrival_us": 1, "dur_us": 2}
                    for s in range(20)
                ]
            },
            "20 steps contradict each other",
        ),
    ],
    ids=["gpu", "no-arrival", "another-job"],
)
def test_a_clock_that_cannot_be_calibrated_is_said_and_left_out(
    tmp_path: Path, second: dict[str, object], reason: str
) -> None:
    a, b = recording(tmp_path, "a", [0], world_size=2), recording(tmp_path, "b", [1], world_size=2, **second)
    (note,) = merge([a, b], tmp_path / "out.starprof").notes
    assert note.startswith("the clock of node 1 is not calibrated")
    assert reason in note
    assert load_run(tmp_path / "out.starprof").clock_offset_ns == {0: (0, 0)}


@pytest.fixture(scope="module")
def open_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunFile]:
    with RunFile.open(tmp_path_factory.mktemp("clock") / "x.starprof") as run:
        yield run


@settings(max_examples=40, deadline=None)
@given(
    st.integers(-(10**15), 10**15),
    st.lists(st.tuples(*[st.integers(0, 50_000)] * 4), min_size=1, max_size=8),
)
def test_the_true_offset_is_always_within_the_bound(
    open_run: RunFile, shift_ns: int, steps: list[tuple[int, int, int, int]]
) -> None:
    """Whatever the ranks did, as long as nobody was done before everybody had arrived."""
    rows, start = [], 10**16
    for number, (arrive_0, arrive_1, extra_0, extra_1) in enumerate(steps):
        together = max(arrive_0, arrive_1)
        for rank, arrive, extra in ((0, arrive_0, extra_0), (1, arrive_1, extra_1)):
            begin = start + (shift_ns if rank else 0)
            cells = {"start_mono_ns": begin, "arrival_us": arrive, "dur_us": together + extra}
            rows.append({"attempt": 0, "rank": rank, "step": number, **cells})
        start += (together + max(extra_0, extra_1)) * US
    ranks = [{"attempt": 0, "rank": r, "node": r, "device": "cpu", "framework": "ddp"} for r in (0, 1)]
    for table, found in (("step", rows), ("rank", ranks)):
        open_run.replace(table, arrow_rows(table, [[r.get(n) for n in BY_NAME[table].names] for r in found]))
    offset = offset_of(open_run, 1)
    assert isinstance(offset, Offset)
    assert abs(offset.offset_ns + shift_ns) <= offset.error_ns
