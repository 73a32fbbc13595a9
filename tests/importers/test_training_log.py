"""Text logs: the forms of the frameworks, progress bars, clock stamps, restarts, ranks, and hostile files."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starprof.analysis import diagnose
from starprof.errors import InputError
from starprof.importers.load import load
from starprof.importers.logs.lines import rank_of_line, rank_of_name, stamp_of
from starprof.importers.logs.reader import LogReader


@pytest.fixture
def read(tmp_path):
    """Write texts to files (name=text) and read them together."""

    def write_and_load(text=None, **files):
        for name, content in ({"log": text} if text is not None else files).items():
            path = tmp_path / f"{name}.txt"
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return load([str(tmp_path)])

    return write_and_load


def seconds(run, row=0):
    return np.round(run.steps["dur_us"][row] / 1e6, 6).tolist()


def megatron(step, ms, batch=8, total=500):
    clock = f" [2024-05-01 12:00:0{step % 10}] iteration {step:8}/ {total:7} | consumed samples: {step * batch:12} | "
    sizes = f"learning rate: 1.5E-04 | global batch size: {batch:5} | lm loss: 1.08E+01 | loss scale: 1.0 |"
    return f"{clock}elapsed time per iteration (ms): {ms:.1f} | {sizes} number of skipped iterations:   0 |"


FORMS = {
    "megatron": [megatron(s, 1500 + s) for s in (10, 20, 30)],
    "megatron in seconds, from torchrun": [
        f"[default7]: iteration    {s}/  115311 | consumed samples: 1 | elapsed time per iteration (s): "
        f"{1.5 + s / 1000} | global batch size:  2048 | lm loss: 2.1 | samples per second: 19.5 | TFLOPs: 149.1 |"
        for s in (10, 20, 30)
    ],
    "nemo 2": [
        f"Training epoch 0, iteration {s}/999 | lr: 0.0003 | global_batch_size: 8 | global_step: {s} | "
        f"reduced_train_loss: 10.3 | train_step_timing in s: {1.5 + s / 1000} | consumed_samples: 80"
        for s in (10, 20, 30)
    ],
    "nemo bar": [
        f"Epoch 0:   1%|#      | {s}/1000 [00:30<50:00,  0.33it/s, loss=1.2, v_num=, reduced_train_loss=10.9, "
        f"global_step={s}.000, consumed_samples=8.0, train_step_timing in s={1.5 + s / 1000}]"
        for s in (10, 20, 30)
    ],
    "deepspeed pipeline": [
        f"[2024-01-01 10:00:0{s % 7},123] [INFO] steps: {s} loss: 1.2345 iter time (s): {1.5 + s / 1000} "
        "samples/sec: 12.3"
        for s in (10, 20, 30)
    ],
    "mmengine": [
        f"2024/05/01 12:00:00 - mmengine - INFO - Epoch(train)  [1][ {s}/1000]  lr: 1.0e-02  eta: 1:00:00  "
        f"time: {1.5 + s / 1000}  data_time: 0.0123  memory: 1000  loss: 1.2"
        for s in (10, 20, 30)
    ],
    "torchvision": [
        f"Epoch: [0]  [  {s}/1251]  eta: 0:10:00  lr: 0.1  img/s: 200.0  loss: 6.9 (6.9)  time: {1.5 + s / 1000}  "
        "data: 0.0123  max mem: 8000"
        for s in (10, 20, 30)
    ],
    "imagenet example": [
        f"Epoch: [0][{s}/1251]\tTime  {1.5 + s / 1000} ( 9.600)\tData  0.0123 ( 0.1)\tLoss 6.9e+00 (6.9e+00)"
        for s in (10, 20, 30)
    ],
    "timm": [
        f"Train: 0 [  {s}/1251 (  4%)]  Loss: 6.9 (6.9)  Time: {1.5 + s / 1000}s, 2000.00/s  (0.600s, 1700.00/s)  "
        "LR: 1.0e-03  Data: 0.0123 (0.10)"
        for s in (10, 20, 30)
    ],
    "detectron2": [
        f"[05/01 12:00:0{s % 7} d2.utils.events]: eta: 0:10:00  iter: {s}  total_loss: 1.2  time: {1.5 + s / 1000}  "
        "last_time: 9.9  data_time: 0.0123  last_data_time: 0.01   lr: 0.002  max_mem: 3000M"
        for s in (10, 20, 30)
    ],
    "nanogpt": [f"iter {s}: loss 2.5000, time {1500 + s:.2f}ms, mfu 12.34%" for s in (10, 20, 30)],
    "llm.c": [
        f"step   {s}/1000 | loss 9.100000 (+1.20z)| norm 3.2000 (+nanz)| lr 3.00e-04 | {1500 + s:.2f} ms | 45.0% MFU"
        for s in (10, 20, 30)
    ],
    "returnn": [
        f"ep 1 train, step {s}, ctc 4.506, num_seqs 10, max_size:time 1000, mem_usage:cuda 5.1GB, "
        f"{1.5 + s / 1000} sec/step"
        for s in (10, 20, 30)
    ],
    "nanochat": [
        f"step {s:05}/21400 (0.05%) | loss: 9.1 | lrm: 1.00 | dt: {1500 + s:.2f}ms | tok/sec: 1,234 | mfu: 45.1"
        for s in (10, 20, 30)
    ],
    "maxtext": [
        f"completed step: {s}, seconds: {1.5 + s / 1000}, TFLOP/s/device: 180.1, Tokens/s/device: 1602, loss: 9.1"
        for s in (10, 20, 30)
    ],
    "fairseq": [
        f"2024-01-01 10:00:00 | INFO | train_inner | epoch 001: {s} / 5000 loss=9.1, wps=1000, "
        f"ups={1000 / (1500 + s):.9f}, bsz=32, num_updates={s}, lr=0.01, train_wall=80, wall=90"
        for s in (10, 20, 30)
    ],
    "key and value": [f"INFO step={s} loss=1.2 step_time={1.5 + s / 1000}s" for s in (10, 20, 30)],
    "json lines": [f'{{"step": {s}, "loss": 1.2, "step_time_ms": {1500 + s}}}' for s in (10, 20, 30)],
    "s/it": [f"[train] iteration {s} loss 1.2 ({1.5 + s / 1000} s/it)" for s in (10, 20, 30)],
    "steps per second": [f"global_step: {s}, steps_per_second: {1000 / (1500 + s):.9f}" for s in (10, 20, 30)],
}


@pytest.mark.parametrize("name", FORMS)
def test_the_step_times_of_every_known_form_are_read(read, name):
    run = read("\n".join(["torch version 2.9", *FORMS[name], "done"]))
    assert run.info["timing"] == "job"
    assert run.steps.steps.tolist() == [10, 20, 30]
    assert seconds(run) == pytest.approx([1.51, 1.52, 1.53])
    assert run.ranks[0].detail["steps_per_record"] == 10


@pytest.mark.parametrize("name", ["mmengine", "torchvision", "imagenet example", "timm", "detectron2"])
def test_waiting_for_data_is_kept_where_the_form_tells_it(read, name):
    run = read("\n".join(FORMS[name]))
    assert run.steps["data_wait_us"][0].tolist() == [12_300.0] * 3


def test_deepspeed_speeds_become_times_with_the_batch_size_of_the_configuration(read):
    head = "[INFO] [config.py:1000:print]   train_batch_size ............................. 256"
    lines = [
        f"[2024-01-01 10:00:00,123] [INFO] [timer.py:199:stop] epoch=0/micro_step={s}/global_step={s}, "
        f"RunningAvgSamplesPerSec=9.9, CurrSamplesPerSec={256 / (1 + s / 100)}, MemAllocated=1.0GB"
        for s in (10, 20, 30)
    ]
    assert seconds(read("\n".join([head, *lines]))) == pytest.approx([1.1, 1.2, 1.3])


def test_deepspeed_lines_without_a_time_are_timed_by_their_clock_stamps(read):
    lines = [
        f"[2024-01-01 10:{m:02}:00,500] [INFO] [logging.py:96:log_dist] [Rank 0] step={s}, skipped=0, lr=[0.1]"
        for s, m in ((10, 0), (20, 1), (30, 2), (40, 4), (50, 5))
    ]
    run = read("\n".join(lines))
    assert run.steps.steps.tolist() == [20, 30, 40, 50]
    assert seconds(run) == [6.0, 6.0, 12.0, 6.0]
    assert "clock stamps" in run.info["note"]


def test_clock_stamps_without_a_date_survive_midnight(read):
    lines = [
        f"{t} step: {s} loss: 7.1" for s, t in enumerate(("23:58:00", "23:59:00", "00:00:00", "00:01:00", "00:02:00"))
    ]
    assert seconds(read("\n".join(lines))) == [60.0] * 4


def test_whole_seconds_are_not_taken_for_exact_step_times(read):
    lines = [f"2024-01-01 10:{s // 60:02}:{s % 60:02} step: {s} loss: 7.1" for s in range(300)]
    run = read("\n".join(lines))
    assert len(run.steps.steps) <= 10
    assert seconds(run) == pytest.approx([1.0] * len(run.steps.steps), rel=0.04)


def test_a_time_that_only_grows_is_the_clock_and_not_the_step_time(read):
    lines = [f"step {s} loss 1.0 time: {s * 2.5 + 0.1:.2f}" for s in range(1, 40)]
    assert seconds(read("\n".join(lines))) == pytest.approx([2.5] * 38)


def bar(label, step, total, elapsed):
    clock = f"{elapsed // 60:02}:{elapsed % 60:02}"
    return f"\x1b[32m{label}:  4%|▏      |\x1b[0m {step}/{total} [{clock}<50:00,  1.50it/s, loss=0.5]"


def test_progress_bars_redrawn_on_one_line_are_read_over_epochs(read):
    bars = [bar("Epoch 0", s, 100, s * 2) for s in range(0, 101, 4)]
    bars += [bar("Validation DataLoader 0", s, 20, s) for s in range(20)]
    bars += [bar("Epoch 1", s, 100, s * 3) for s in range(0, 101, 4)]
    run = read("\r".join(bars))
    assert run.info["timing"] == "job"
    first = run.steps.steps <= 100
    assert np.array(seconds(run))[first] == pytest.approx(2.0)
    assert np.array(seconds(run))[~first] == pytest.approx(3.0)
    assert run.steps.steps[-1] > 180


def test_later_attempts_count_where_a_log_holds_restarts(read):
    lines = [megatron(s, 1000) for s in range(1, 31)]
    lines += ["  successfully saved checkpoint at iteration      20 to /ckpt"]
    lines += [megatron(s, 2000) for s in range(21, 51)]
    run = read("\n".join(lines))
    assert run.steps.steps.tolist() == list(range(1, 51))
    assert seconds(run) == [1.0] * 20 + [2.0] * 30
    assert "restarted 1 time; 10 records" in run.info["note"]
    assert run.events[run.events["kind"] == "restart"]["step"].tolist() == [21]


def test_a_lone_low_step_number_is_no_restart(read):
    lines = [megatron(s, 1000) for s in range(1, 31)]
    assert len(read("\n".join([*lines, megatron(2, 9)])).steps.steps) == 30


def test_logs_of_consecutive_jobs_are_one_run(read):
    run = read(
        first="\n".join(megatron(s, 1000) for s in range(1, 31)),
        second="\n".join(megatron(s, 2000) for s in range(25, 51)),
    )
    assert run.steps.steps.tolist() == list(range(1, 51))
    assert seconds(run)[23:25] == [1.0, 2.0]


def test_two_logs_of_the_same_steps_are_refused(read):
    text = "\n".join(megatron(s, 1000) for s in range(1, 31))
    with pytest.raises(InputError, match="same steps"):
        read(first=text, second=text)


RANKED = {
    "srun": "{rank}: step={step} step_time={time}s",
    "torch.distributed": "[rank{rank}]: step={step} step_time={time}s",
    "mpirun": "[1,{rank}]<stdout>: step={step} step_time={time}s",
    "within the line": "2024-01-01 10:00:00,000 INFO [Rank {rank}] step={step} step_time={time}s",
    "workers": "[worker {rank}] step {step} step_time_s: {time}",
}


@pytest.mark.parametrize("name", RANKED)
def test_ranks_that_lines_name_are_told_apart(read, name):
    lines = [RANKED[name].format(rank=r, step=s, time=1 + s / 10 + r / 1000) for s in range(20) for r in (2, 0, 1)]
    run = read("\n".join(lines))
    assert run.info["source_format"] == "training-log"
    assert run.info["timing"] == "wall"
    assert [r.rank for r in run.ranks] == [0, 1, 2]
    assert [seconds(run, row)[0] for row in range(3)] == [1.0, 1.001, 1.002]


def test_times_of_ranks_that_differ_in_sum_hold_no_waiting(read):
    lines = [f"[rank{r}]: step={s} step_time={1 + (r == 2) + s % 3 / 100}s" for s in range(40) for r in range(6)]
    run = read("\n".join(lines))
    assert run.info["timing"] == "own"
    assert diagnose(run).findings[0].ranks == (2,)


def test_lines_of_several_workers_that_nothing_tells_apart_are_no_series(read):
    lines = [f"host{r} says: step {s} step_time 1.{r}s" for s in range(40) for r in range(4)]
    with pytest.raises(InputError):
        read("\n".join(lines))


def test_one_log_per_rank_gives_ranks_with_their_waiting_for_data(read):
    files = {
        f"rank{r}": "\n".join(
            f"Epoch(train) [1][{s}/100] lr: 0.1 time: 2.0 data_time: {0.5 if r == 1 else 0.01}" for s in range(1, 21)
        )
        for r in range(4)
    }
    run = read(**files)
    assert [r.rank for r in run.ranks] == [0, 1, 2, 3]
    assert run.steps["data_wait_us"][:, 0].tolist() == [1e4, 5e5, 1e4, 1e4]


def test_saving_is_an_event_of_the_step_before_it(read):
    lines = []
    for s in range(1, 201):
        lines.append(megatron(s, 4000 if s % 20 == 0 else 1000 + s % 7))
        if s % 20 == 0:
            lines.append(f"saving checkpoint at iteration {s} to /ckpt in torch_dist format")
    verdict = diagnose(read("\n".join(lines)))
    assert verdict.verdict == "none"
    assert [(f.kind, f.cause) for f in verdict.findings] == [("periodic", "checkpoint")]


def test_the_world_size_of_the_argument_dump_is_kept(read):
    head = [
        "  world_size ...................................... 384",
        *(f"  option_{i} ..... {i}" for i in range(20_000)),
    ]
    verdict = diagnose(read("\n".join([*head, *(megatron(s, 1000 + s % 5) for s in range(1, 60))])))
    assert verdict.ranks == 384


def test_a_slowdown_in_a_log_is_dated_and_blames_nobody(read):
    rng = np.random.default_rng(0)
    times = 105_000 * (1 + 0.004 * rng.standard_normal(300)) * np.where(np.arange(300) >= 182, 1.057, 1)
    verdict = diagnose(read("\n".join(megatron(42_600 + i, t, total=115_311) for i, t in enumerate(times))))
    (finding,) = verdict.findings
    assert verdict.verdict == "inconclusive"
    assert finding.onset_interval[0] <= 42_782 <= finding.onset_interval[1]
    assert finding.slowdown == pytest.approx(1.057, abs=0.004)
    assert finding.ranks == ()


def test_a_gzipped_log_is_read_like_any_other(read):
    assert len(read(gzip.compress("\n".join(FORMS["megatron"]).encode())).steps.steps) == 3


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n\n",
        b"hello world, no steps here\n" * 10,
        bytes(range(256)) * 100,
        b"step 1 " * 100_000,
        b"iteration 5/ 10 | elapsed time per iteration (ms): nan |\n" * 5,
        b"iteration 5/ 10 | elapsed time per iteration (ms): 0.0 |\n" * 5,
        b"\x1b]0;title\x07\x1b[2J step \n" * 10,
        ("step 1 time: " + "9" * 5000 + "s\n").encode() * 5,
    ],
)
def test_what_is_no_log_is_refused_in_one_line(read, content):
    with pytest.raises(InputError) as refused:
        read(content)
    assert "\n" not in str(refused.value)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=60),
            st.tuples(st.integers(-5, 10**14), st.floats(allow_nan=True)).map(
                lambda p: f"step {p[0]} step_time {p[1]}s"
            ),
            st.tuples(st.integers(0, 10**14), st.integers(0, 10**14), st.integers(0, 10**7)).map(
                lambda p: f"Epoch {p[0]}: 3%|# | {p[1]}/{p[2]} [{p[2]}:07<?, 1.5it/s]"
            ),
        ),
        max_size=40,
    )
)
def test_whatever_lines_hold_there_are_records_or_none(lines):
    reader = LogReader()
    for line in lines:
        reader.feed(*rank_of_line(line))
    for records in reader.finished().values():
        assert (np.diff(records.steps) > 0).all()
        assert (records.columns["dur_us"] > 0).all()


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("logs/rank3.log", 3),
        ("run/train_rank-12.txt", 12),
        ("a.tar!logs/rank_7/train.log", 7),
        ("none_x/attempt_0/5/stderr.log", 5),
        ("frank1.log", None),
        ("slurm-123.out", None),
    ],
)
def test_a_file_name_may_tell_the_rank(name, rank):
    assert rank_of_name(name) == rank


@pytest.mark.parametrize(
    "line",
    [
        "[2024-05-01 12:00:00,250] message",
        "2024-05-01T12:00:00.250 message",
        "2024/05/01 12:00:00.250 - message",
        "[2024-05-01 12:00:00.250000]",
    ],
)
def test_clock_stamps_are_read_in_the_common_forms(line):
    stamp = stamp_of(line)
    assert stamp.seconds % 60 == pytest.approx(0.25)
    assert stamp.dated


def test_impossible_dates_are_no_clock_stamps():
    assert stamp_of("2024-99-99 99:99:99 message") is None
