"""Profiler traces: what is read of them, whatever they are packed in and whatever is wrong with them."""

import gzip
import io
import json
import tarfile
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_lab import KERNELS, Job, write

from starprof.errors import InputError
from starprof.importers.load import load
from starprof.importers.source import Source
from starprof.importers.traces import eventstream, kineto

SMALL = Job(world=2, steps=2, calls=3)


def event(category, name, start, duration, **args):
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": args.pop("tid", 1), "ts": start, "dur": duration,
            **({"args": args} if args else {})}  # fmt: skip


def document(*events, rank=0, world=1, **header):
    return {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
            "traceEvents": list(events), **header}  # fmt: skip


def read_one(tmp_path, trace, name="rank0.json"):
    path = tmp_path / name
    path.write_bytes(trace if isinstance(trace, bytes) else json.dumps(trace).encode())
    source = Source(str(path), path)
    assert kineto.recognises(source)
    return kineto.read([source])


def limits(run):
    return " ".join(run.unavailable["reason"])


@pytest.mark.parametrize("backend", [*KERNELS, "gloo"])
@pytest.mark.parametrize("told", [True, False])
def test_collectives_of_every_backend_are_found(tmp_path, backend, told):
    run = load([write(tmp_path / "job", Job(world=2, steps=2, calls=3, backend=backend, told=told).traces())])
    assert [r.rank for r in run.ranks] == [0, 1]
    assert len(run.collectives) == 2 * 2 * 3
    assert set(run.collectives["name"]) == {"all_reduce"}
    assert sorted(run.collectives["step"].unique()) == [5, 6]
    assert (run.collectives.groupby("sequence")["rank"].nunique() == 2).all()


def test_a_kernel_that_does_not_tell_its_kind_has_that_of_the_call_around_its_launch(tmp_path):
    run = read_one(
        tmp_path,
        document(
            event("cpu_op", "c10d::_reduce_scatter_base_", 10, 20),
            event("cuda_runtime", "hipExtLaunchKernel", 15, 1, correlation=1),
            event("kernel", KERNELS["rccl"], 40, 10, correlation=1),
        ),
    )
    assert run.collectives["name"].tolist() == ["reduce_scatter"]


@pytest.mark.parametrize("called_until", [15, 60])
def test_a_call_on_the_host_is_what_its_name_says_whether_its_caller_has_returned_or_not(tmp_path, called_until):
    """Gloo does a reduce-scatter as an all-reduce, and its caller has returned on one rank and not on the other."""
    called = event("cpu_op", "c10d::_reduce_scatter_base_", 10, called_until - 10)
    run = read_one(tmp_path, document(called, event("user_annotation", "gloo:all_reduce", 20, 30, tid=2)))
    assert run.collectives["name"].tolist() == ["all_reduce"]


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
        "void mscclKernel_Sum_float_LL_false(ncclDevComm*, mscclAlgo*, mscclWork*)",
        "mscclKernel_Sum_float_Simple_false",
        "rcclDevKernel_Generic",
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
    ],
)
def test_kernels_of_nccl_rccl_and_msccl_are_calls_and_others_are_not(tmp_path, name):
    around = event("user_annotation", "nccl:all_reduce", 8, 4)
    launch = event("cuda_runtime", "hipLaunchKernel", 10, 1, correlation=7)
    kernel = event("kernel", name, 40, 10, correlation=7)
    run = read_one(tmp_path, document(around, launch, kernel, event("kernel", "Cijk_Ailk_Bljk_SB_MT64x64", 20, 5)))
    assert run.collectives["name"].tolist() == ["all_reduce"]


def test_kernels_without_any_kind_are_collectives_unless_the_trace_holds_sends(tmp_path):
    unknown = event("kernel", KERNELS["rccl"], 40, 10)
    alone = read_one(tmp_path, document(unknown))
    assert alone.collectives["name"].tolist() == ["collective"]
    beside = read_one(tmp_path, document(event("cpu_op", "c10d::send", 5, 1), unknown))
    assert beside.collectives["name"].tolist() == ["unknown"]


def test_plain_packed_and_archived_traces_give_the_same(tmp_path):
    traces = {rank: json.dumps(trace).encode() for rank, trace in SMALL.traces().items()}
    (tmp_path / "plain").mkdir()
    (tmp_path / "packed").mkdir()
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as tar, zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for rank, text in traces.items():
            (tmp_path / "plain" / f"r{rank}.json").write_bytes(text)
            (tmp_path / "packed" / f"r{rank}.json.gz").write_bytes(gzip.compress(text))
            info = tarfile.TarInfo(f"job/{rank}.pt.trace.json")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
            archive.writestr(f"job/{rank}.pt.trace.json", text)
    runs = [load([str(tmp_path / name)]) for name in ("plain", "packed", "all.tar.gz", "all.zip")]
    for run in runs:
        assert np.array_equal(run.collectives["dur_us"], runs[0].collectives["dur_us"])
        assert np.array_equal(run.steps["blocked_us"], runs[0].steps["blocked_us"])


def test_pretty_printed_and_dense_json_give_the_same(tmp_path):
    dense = load([write(tmp_path / "a", SMALL.traces())])
    pretty = load([write(tmp_path / "b", SMALL.traces(), dumps=lambda t: json.dumps(t, indent=2))])
    assert np.array_equal(dense.collectives["dur_us"], pretty.collectives["dur_us"])


def test_a_bare_list_of_events_is_read(tmp_path):
    trace = SMALL.traces()[0]["traceEvents"]
    run = read_one(tmp_path, json.dumps(trace).encode())
    assert len(run.collectives) == 6


def test_keys_behind_the_events_are_read(tmp_path):
    trace = document(event("cpu_op", "aten::mm", 0, 5))
    last = {"schemaVersion": 1, "traceEvents": trace["traceEvents"], "distributedInfo": {"rank": 3, "world_size": 4},
            "deviceProperties": [{"id": 0}, {"id": 1}]}  # fmt: skip
    assert read_one(tmp_path, last).ranks[0].rank == 3


def test_nanosecond_bases_of_two_hosts_are_put_on_one_clock(tmp_path):
    call = event("kernel", KERNELS["nccl"], 1000.125, 50.5)
    for rank, base in ((0, 10**18), (1, 10**18 + 7_000_000)):
        trace = document(call, rank=rank, world=2, baseTimeNanoseconds=base)
        (tmp_path / f"{rank}.json").write_text(json.dumps(trace))
    run = load([str(tmp_path)])
    assert list(run.collectives["start_us"]) == [1000.125, 8000.125]
    assert list(run.collectives["dur_us"]) == [50.5, 50.5]


def test_blocked_is_the_time_of_collectives_that_no_kernel_hides(tmp_path):
    run = read_one(
        tmp_path,
        document(
            event("user_annotation", "ProfilerStep#3", 0, 100),
            event("kernel", "gemm", 0, 40, stream=7),
            event("kernel", KERNELS["nccl-new"], 30, 30, stream=20),
        ),
    )
    assert run.steps["dur_us"].tolist() == [[100.0]]
    assert run.steps["blocked_us"].tolist() == [[20.0]]
    assert "backward_us" not in run.steps.columns


def test_on_a_cpu_only_innermost_operators_hide_a_collective(tmp_path):
    run = read_one(
        tmp_path,
        document(
            event("user_annotation", "ProfilerStep#0", 0, 100),
            event("cpu_op", "autograd::engine::evaluate_function: SyncBackward", 0, 80),
            event("cpu_op", "aten::mm", 10, 20),
            event("user_annotation", "gloo:all_reduce", 20, 50, tid=9),
        ),
    )
    assert run.steps["blocked_us"].tolist() == [[40.0]]
    assert run.steps["backward_us"].tolist() == [[40.0]]


def test_phases_are_exclusive_and_come_from_annotations_and_operators(tmp_path):
    run = read_one(
        tmp_path,
        document(
            event("user_annotation", "ProfilerStep#0", 0, 100),
            event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 10),
            event("user_annotation", "DistributedDataParallel.forward", 10, 20),
            event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 30, 30),
            event("user_annotation", "gloo:all_reduce", 60, 15, tid=9),
            event("user_annotation", "Optimizer.step#SGD.step", 80, 5),
        ),
    )
    spans = {name: values[0, 0] for name, values in run.steps.columns.items()}
    assert spans == {
        "dur_us": 100,
        "blocked_us": 15,
        "data_wait_us": 10,
        "forward_us": 20,
        "backward_us": 30,
        "optimizer_us": 5,
    }


def test_a_call_launched_before_the_first_step_belongs_to_none(tmp_path):
    run = read_one(
        tmp_path,
        document(
            event("user_annotation", "ProfilerStep#0", 100, 100),
            event("cuda_runtime", "cudaLaunchKernel", 90, 1, correlation=1),
            event("kernel", KERNELS["nccl"], 120, 10, correlation=1),
            event("cuda_runtime", "cudaLaunchKernel", 130, 1, correlation=2),
            event("kernel", KERNELS["nccl"], 230, 10, correlation=2),
        ),
    )
    assert run.collectives["step"].isna().tolist() == [True, False]
    assert "1 of 2 calls belong to no ProfilerStep" in limits(run)


def test_calls_that_ranks_made_differently_often_are_not_matched(tmp_path):
    traces = SMALL.traces()
    kernels = [e for e in traces[1]["traceEvents"] if e["name"].startswith("nccl") and e["cat"] == "kernel"]
    traces[1]["traceEvents"].remove(kernels[0])
    run = load([write(tmp_path / "job", traces)])
    matched = run.collectives[run.collectives["sequence"].notna()]
    assert set(matched["step"]) == {6}
    assert "ranks made differently many in a step" in limits(run)


def test_ranks_come_from_the_file_names_when_the_traces_name_none_and_that_is_said(tmp_path):
    traces = SMALL.traces()
    for trace in traces.values():
        del trace["distributedInfo"]
    run = load([write(tmp_path / "job", traces, name="worker{}_step_12.pt.trace.json")])
    assert [r.rank for r in run.ranks] == [0, 1]
    assert "ranks from the file names" in limits(run)


def test_traces_that_tell_no_rank_at_all_are_refused_with_what_is_missing(tmp_path):
    traces = SMALL.traces()
    for trace in traces.values():
        del trace["distributedInfo"]
    with pytest.raises(InputError, match="no distributedInfo, and its name no rank"):
        load([write(tmp_path / "job", traces, name="host_{}.json")])


def test_one_trace_without_a_rank_is_rank_0_and_that_is_said(tmp_path):
    trace = SMALL.traces()[1]
    del trace["distributedInfo"]
    run = read_one(tmp_path, trace, name="trace.json")
    assert [r.rank for r in run.ranks] == [0]
    assert "taken to be 0" in limits(run)


def test_a_rank_that_comes_twice_is_refused_with_both_names(tmp_path):
    traces = SMALL.traces()
    with pytest.raises(InputError, match=r"rank 0 comes twice.*a\.json.*b\.json"):
        load([write(tmp_path / "job", {"a": traces[0], "b": traces[0]}, name="{}.json")])


def test_traces_of_two_world_sizes_are_refused_as_one_job(tmp_path):
    write(tmp_path / "job", {0: SMALL.traces()[0]})
    write(tmp_path / "job", {0: Job(world=4, steps=1, calls=1).traces()[0]}, name="other{}.json")
    with pytest.raises(InputError, match="traces of 2 jobs"):
        load([str(tmp_path / "job")])


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_that_is_cut_off_gives_what_is_whole_and_says_so(tmp_path, packed):
    text = json.dumps(Job(world=1, steps=40, calls=20).traces()[0], indent=1).encode()
    data = gzip.compress(text) if packed else text
    run = read_one(tmp_path, data[: len(data) // 2])
    assert 200 < len(run.collectives) < 800
    assert "cut off" in limits(run)
    assert "blocked_us" not in run.steps.columns


def test_a_trace_that_is_cut_off_before_its_first_event_is_one_clear_error(tmp_path):
    with pytest.raises(InputError, match="cut off before"):
        read_one(tmp_path, b'{"schemaVersion": 1, "distributedInfo": {"rank": 0}, "traceEvents": [{"ph": "X", "ca')


@pytest.mark.parametrize(
    "name",
    [b"C:\\users\\x", b"tab\there", b"nul\x00", b"\xff\xfe", b"\\ud800", b"\\u12"],
    ids=["escape", "tab", "nul", "utf8", "surrogate", "hex"],
)
def test_characters_that_json_forbids_cost_no_event(tmp_path, name):
    text = json.dumps(SMALL.traces()[0]).encode().replace(b"sm80_gemm", name)
    run = read_one(tmp_path, text)
    assert len(run.collectives) == 6
    assert np.isfinite(run.steps["blocked_us"]).all()


def test_events_with_fields_of_the_wrong_type_are_left_out_and_counted(tmp_path):
    trace = SMALL.traces()[0]
    trace["traceEvents"][5:5] = [
        {"ph": "X", "cat": 7, "name": "x"},
        {"ph": "X", "cat": "kernel", "name": "k", "ts": []},
    ]
    run = read_one(tmp_path, trace)
    assert len(run.collectives) == 6
    assert "2 events can't be read" in limits(run)


def test_impossible_times_are_left_out_and_counted(tmp_path):
    trace = SMALL.traces()[0]
    for bad in (-5.0, 1e300):
        trace["traceEvents"].append(event("kernel", KERNELS["nccl"], 10, bad))
    text = json.dumps(trace).replace('"dur": 1e+300', '"dur": NaN').encode()
    run = read_one(tmp_path, text)
    assert (run.collectives["dur_us"] >= 0).all()
    assert "2 events with impossible times" in limits(run)


def test_a_damaged_trace_among_whole_ones_is_named_and_the_others_are_read(tmp_path):
    folder = write(tmp_path / "job", Job(world=3, steps=1, calls=1).traces())
    (tmp_path / "job" / "rank1.json").write_bytes(b'{"schemaVersion": 1, "distributedInfo": {}, "traceEvents": [')
    run = load([folder])
    assert [r.rank for r in run.ranks] == [0, 2]
    assert "rank1.json" in " ".join(run.unavailable["source"])


def test_deep_nesting_is_no_crash(tmp_path):
    text = json.dumps(SMALL.traces()[0]).encode()
    deep = b'{"ph": "X", "cat": "cpu_op", "name": "x", "args": ' + b"[" * 200_000 + b"},"
    run = read_one(tmp_path, text.replace(b'"traceEvents": [', b'"traceEvents": [' + deep, 1))
    assert "can't be read" in limits(run)


@given(st.binary(max_size=300))
def test_whatever_follows_a_trace_start_is_read_or_refused_in_one_line(tmp_path_factory, rest):
    path = tmp_path_factory.mktemp("hostile") / "rank0.json"
    path.write_bytes(b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "ts": 1, "dur": 1},' + rest)
    refused = ""
    try:
        kineto.read([Source(str(path), path)])
    except InputError as error:
        refused = str(error)
    assert "\n" not in refused


def test_other_chrome_traces_are_not_taken_for_profiler_traces(tmp_path):
    for text in (b'[{"ph": "B", "name": "NEGOTIATE_ALLREDUCE"}]', b'{"traceEvents": [{"ph": "X", "name": "x"}]}'):
        path = tmp_path / "other.json"
        path.write_bytes(text)
        assert not kineto.recognises(Source(str(path), path))


def test_memory_holds_numbers_not_events(tmp_path, monkeypatch):
    monkeypatch.setattr(eventstream, "CHUNK_BYTES", 1 << 17)

    def peak(steps):
        text = json.dumps(Job(world=1, steps=steps, calls=50, told=False).traces()[0]).encode()
        tracemalloc.start()
        read_one(tmp_path, text)
        most = tracemalloc.get_traced_memory()[1] - len(text)
        tracemalloc.stop()
        return most, len(text)

    small, size = peak(40)
    large, larger_size = peak(160)
    assert larger_size > 3 * size
    assert large - small < 0.25 * (larger_size - size)


def test_the_public_traces_are_read_with_their_ranks_steps_and_calls(public_data):
    run = load([str(public_data("kineto_dlrm_8rank"))])
    assert [r.rank for r in run.ranks] == list(range(8))
    assert run.steps.steps.tolist() == [10]
    assert (run.collectives.groupby("rank").size() == 8).all()
    first = run.collectives[run.collectives["sequence"] == run.collectives["sequence"].min()]
    assert first.set_index("rank")["dur_us"].to_dict()[7] == 10
