"""Steps and metrics of several sources as one run: what is laid on what, and what is only shown beside."""

import json

import numpy as np
import pandas as pd
import pytest
from metric_texts import smi_csv, smi_row, source
from samples import samples

from starprof.analysis import diagnose
from starprof.errors import InputError, UsageError
from starprof.importers.base import OWN, run_of
from starprof.importers.load import load
from starprof.importers.merge import with_metrics
from starprof.importers.metrics import nvidia_smi, prometheus
from starprof.importers.registry import importers
from starprof.importers.source import Source
from starprof.model.rundata import RankInfo
from starprof.model.schema import BY_NAME
from starprof.store.query import load_run
from starprof.store.save import save_run

__all__ = ["source"]
T0_NS = 1_769_853_600_000_000_000
"""10:00:00 of the texts, read as UTC."""


def steps(start_ns=T0_NS, *, hosts=("n1",), ranks_each=4, count=30, unavailable=()):
    """A run of steps of 100 ms, from a moment on."""
    infos = [
        RankInfo(rank=n * ranks_each + i, node=n, host=host, local_rank=i if len(hosts) > 1 else None)
        for n, host in enumerate(hosts)
        for i in range(ranks_each)
    ]
    shape = (len(infos), count)
    starts = np.broadcast_to(start_ns + np.arange(count) * 10**8, shape).astype(np.int64)
    return run_of(
        "steps",
        [Source("steps.log", None)],
        ranks=infos,
        steps=range(count),
        columns={"dur_us": np.full(shape, 1e5)},
        start_ns=starts,
        timing=OWN,
        unavailable=unavailable,
    )


NO_ZONE = [("time zone", "the log names none")]


def smi(source, *, name="gpus.csv", gpus=4, seconds=8):
    return nvidia_smi.read([source(smi_csv([smi_row(s, g) for s in range(seconds) for g in range(gpus)]), name)])


def dcgm(source, host="n1", start=T0_NS // 10**9, gpus=4):
    series = [
        {
            "metric": {"__name__": "DCGM_FI_DEV_GPU_UTIL", "gpu": str(g), "UUID": f"GPU-{host}-{g}", "Hostname": host},
            "values": [[start + 15 * t, "99"] for t in range(4)],
        }
        for g in range(gpus)
    ]
    text = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": series}})
    return prometheus.read([source(text, f"{host}.json")])


def test_samples_of_the_same_host_and_clock_lie_on_the_steps(source):
    run, words = with_metrics(steps(), [dcgm(source)])
    assert run.samples["gpu_sample"]["node"].unique().tolist() == [0]
    assert run.samples["gpu_sample"]["mono_ns"].min() == T0_NS
    assert [r.gpu_uuid for r in run.ranks] == [f"GPU-n1-{g}" for g in range(4)]
    assert words == ["GPU i of node 0 taken as the one of its local rank i"]


def test_short_and_full_host_names_are_the_same_host(source):
    run, _ = with_metrics(steps(hosts=("n1.cluster.example",)), [dcgm(source)])
    assert run.ranks[0].gpu_uuid == "GPU-n1-0"


def test_every_host_gets_its_own_samples(source):
    run, _ = with_metrics(
        steps(hosts=("n1", "n2"), ranks_each=2), [dcgm(source, "n2", gpus=2), dcgm(source, "n1", gpus=2)]
    )
    assert [r.gpu_uuid for r in run.ranks] == ["GPU-n1-0", "GPU-n1-1", "GPU-n2-0", "GPU-n2-1"]
    assert sorted(run.samples["gpu_sample"]["node"].unique()) == [0, 1]


def test_clock_of_the_steps_is_kept_when_it_is_tied_to_the_wall_clock(source):
    run = steps(start_ns=5 * 10**9)
    node = {**dict.fromkeys(BY_NAME["node"].names), "node": 0, "host": "n1", "mono_ns": 4 * 10**9, "unix_ns": T0_NS}
    tied = type(run)(**{**vars(run), "nodes": pd.DataFrame([node])})
    merged, _ = with_metrics(tied, [dcgm(source)])
    assert merged.samples["gpu_sample"]["mono_ns"].min() == 4 * 10**9


def test_stamps_without_zone_lie_on_stamps_without_zone_and_that_is_said(source):
    run, words = with_metrics(steps(unavailable=NO_ZONE), [smi(source)])
    assert run.ranks[2].gpu_uuid == "GPU-00000002-aaaa"
    assert any("taken to be the same" in w for w in words)


def test_zone_that_metrics_lack_is_not_taken_for_one_that_the_steps_lack(source):
    run, words = with_metrics(steps(), [smi(source), dcgm(source)])
    assert [r.gpu_uuid for r in run.ranks] == [f"GPU-n1-{g}" for g in range(4)]
    assert sum("time zone" in w for w in words) == 1
    assert "nvidia-smi: time zone" in run.unavailable["source"].tolist()


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: steps(), "only one of them tells its time zone"),
        (lambda: steps(start_ns=1), "no wall-clock stamps"),
        (lambda: steps(start_ns=T0_NS + 10**15, unavailable=NO_ZONE), "do not overlap"),
    ],
    ids=["zone", "no clock", "another time"],
)
def test_samples_that_cannot_be_aligned_stand_beside_and_the_reason_is_said(source, made, said):
    run, words = with_metrics(made(), [smi(source)])
    assert any(said in w for w in words)
    assert not set(run.samples["gpu_sample"]["node"]) & {r.node for r in run.ranks}
    assert all(r.gpu_uuid is None for r in run.ranks)
    assert len(run.samples["gpu_sample"]) == 32


def test_samples_of_another_host_stand_beside(source):
    run, words = with_metrics(steps(), [dcgm(source, "n9")])
    assert run.samples["gpu_sample"]["node"].unique().tolist() == [1]
    assert run.nodes["host"].tolist() == ["n9"]
    assert any("host n9" in w for w in words)


def test_nameless_metrics_of_one_host_need_as_many_gpus_as_ranks(source):
    fits, _ = with_metrics(steps(hosts=("",), unavailable=NO_ZONE), [smi(source)])
    other, words = with_metrics(steps(hosts=("",), unavailable=NO_ZONE), [smi(source, gpus=8)])
    assert fits.ranks[0].gpu_uuid is not None
    assert other.ranks[0].gpu_uuid is None
    assert any("not certain which ranks" in w for w in words)


def test_uuid_that_the_steps_know_is_kept(source):
    run = steps()
    known = tuple(RankInfo(r.rank, r.node, r.host, gpu_uuid="GPU-mine") for r in run.ranks)
    merged, _ = with_metrics(type(run)(**{**vars(run), "ranks": known}), [dcgm(source)])
    assert {r.gpu_uuid for r in merged.ranks} == {"GPU-mine"}


def test_two_sources_of_the_same_gpus_do_not_mix_their_series(source):
    run, _ = with_metrics(steps(), [dcgm(source), dcgm(source, start=T0_NS // 10**9 + 1)])
    rows = run.samples["gpu_sample"]
    assert rows.groupby(["node", "gpu"]).size().tolist() == [4] * 8
    assert run.samples["gpu"].duplicated(["node", "gpu"]).sum() == 0


def test_merged_run_is_kept_and_read_back_whole(source, tmp_path):
    run, _ = with_metrics(steps(hosts=("n1", "n2"), ranks_each=2), [dcgm(source, "n1", gpus=2), dcgm(source, "n7")])
    save_run(run, tmp_path / "run.starprof")
    back = load_run(tmp_path / "run.starprof")
    assert [r.gpu_uuid for r in back.ranks] == [r.gpu_uuid for r in run.ranks]
    assert len(back.samples["gpu_sample"]) == len(run.samples["gpu_sample"])
    assert diagnose(back).to_json() == diagnose(run).to_json()


def write(folder, files):
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return str(folder)


def sample(name):
    return next(s for s in samples() if s.format == name)


@pytest.mark.parametrize("metrics", ["nvidia-smi", "dmon", "prometheus"])
@pytest.mark.parametrize("told", ["mllog", "kineto"])
def test_folder_with_steps_and_metrics_gives_the_verdict_on_the_steps(tmp_path, told, metrics):
    alone = load([write(tmp_path / "steps", sample(told).files)])
    both = load([write(tmp_path / "both", sample(told).files | sample(metrics).files)])
    assert both.info["note"].startswith(f"read as {told}")
    assert metrics in both.info["note"]
    assert both.samples["gpu_sample"] is not None
    assert diagnose(both).verdict == diagnose(alone).verdict


def test_damaged_metrics_are_left_out_and_named(tmp_path):
    bad = {"gpus.csv": b"power.draw, utilization.gpu\n1, 2\n"}
    run = load([write(tmp_path / "both", sample("mllog").files | bad)])
    assert "gpus.csv (" in run.info["note"]
    assert "nvidia-smi" in run.unavailable["source"].tolist()
    assert run.steps.steps.size > 0


def test_damaged_metrics_alone_are_refused(tmp_path):
    with pytest.raises(InputError, match="add timestamp and index"):
        load([write(tmp_path / "one", {"gpus.csv": b"power.draw, utilization.gpu\n1, 2\n"})])


def test_unreadable_file_in_a_folder_is_named_and_the_rest_is_read(tmp_path):
    run = load([write(tmp_path / "logs", sample("mllog").files | {"cut.gz": b"\x1f\x8b\x08"})])
    assert "not read: cut.gz (" in run.info["note"]


def test_unknown_format_lists_those_that_there_are(tmp_path):
    with pytest.raises(UsageError, match="mllog"):
        load([str(tmp_path)], "nonsense")


def test_empty_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no file"):
        load([str(tmp_path)])


@pytest.mark.parametrize("given", samples(), ids=lambda s: f"{s.format}-{next(iter(s.files))}")
def test_every_sample_is_recognised_as_its_format_and_diagnosed(tmp_path, given):
    run = load([write(tmp_path / "in", given.files)])
    assert run.info["source_format"] == given.format
    assert diagnose(run).to_json()["schema"] == 1


def test_every_format_has_a_sample():
    assert {i.NAME for i in importers()} == {s.format for s in samples()}


@pytest.mark.parametrize("given", samples(), ids=lambda s: f"{s.format}-{next(iter(s.files))}")
def test_kept_run_of_every_format_gives_the_same_verdict(tmp_path, given):
    run = load([write(tmp_path / "in", given.files)])
    save_run(run, tmp_path / "run.starprof")
    assert diagnose(load_run(tmp_path / "run.starprof")).to_json() == diagnose(run).to_json()
