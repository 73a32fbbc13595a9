"""Logs as they are found: several processes in one file, several forms side by side, units beside or missing."""

import numpy as np
import pytest

from starprof.errors import InputError
from starprof.importers.load import load
from starprof.reports import facts


@pytest.fixture
def read(tmp_path):
    """Write lines to a file and read it."""

    def write_and_load(lines):
        (tmp_path / "job.log").write_text("\n".join(lines))
        return load([str(tmp_path / "job.log")])

    return write_and_load


def stamp(seconds):
    return f"2026-03-01 10:{int(seconds) // 60:02}:{int(seconds) % 60:02},{int(seconds % 1 * 1000):03}"


def times(run):
    return run.steps["dur_us"][0] / 1e6


@pytest.mark.parametrize("written", ["iter time: 640.25ms", "step_time: 640.25 ms", "batch_time=0.64025s"])
def test_a_unit_behind_a_time_counts(read, written):
    run = read([f"iter {i}: loss 2.5, {written}" for i in range(1, 9)])
    assert times(run) == pytest.approx(0.64025)


def test_times_without_a_unit_get_it_from_the_clock_stamps_beside_them(read):
    run = read([f"{stamp(2.5 * i)} step={i} step_time={2480 + i}" for i in range(1, 60)])
    assert times(run)[0] == pytest.approx(2.481)
    assert "milliseconds by the clock stamps" in run.info["note"]


def test_times_without_a_unit_and_without_a_clock_are_said_to_be_taken_as_seconds(read):
    run = read([f"step={i} step_time={2.4 + i / 100}" for i in range(1, 20)])
    assert times(run)[0] == pytest.approx(2.41)
    assert "no unit: taken as seconds" in run.info["note"]


def test_seconds_that_agree_with_the_clock_need_no_remark(read):
    run = read([f"{stamp(2.5 * i)} step={i} step_time={2.48}" for i in range(1, 60)])
    assert times(run)[0] == pytest.approx(2.48)
    assert "unit" not in run.info["note"]


def test_processes_that_write_the_same_times_into_one_log_are_one_series(read):
    run = read([f"global step {i}: loss = 7.1 ({3 + i / 50:.3f} sec/step)" for i in range(1, 30) for _ in range(4)])
    assert run.steps.steps.tolist() == list(range(1, 30))
    assert times(run) == pytest.approx(3 + np.arange(1, 30) / 50)


def test_times_beyond_reason_are_refused_in_one_line(read):
    with pytest.raises(InputError) as refused:
        read([f"step: {i} step_time: {t}" for i in range(1, 30) for t in ("1e300s", "1e-300s")])
    assert "\n" not in str(refused.value)


def test_processes_that_write_the_same_steps_are_timed_by_their_clock_stamps(read):
    lines = [f"{stamp(2 * i + p / 1000)} - INFO - step: {i} loss: 5.1" for i in range(1, 40) for p in range(8)]
    swapped = [*lines[:15], lines[16], lines[15], *lines[17:]]  # the last line of a step comes behind the next step
    run = read(swapped)
    assert times(run) == pytest.approx(2.0, abs=0.01)
    assert len(run.steps.steps) >= 35
    assert not len(run.events)


def test_stated_times_go_before_clock_stamps_of_lines_that_name_a_rank(read):
    lines = []
    for i in range(1, 30):
        lines.append(f"[{stamp(5 * i)}] [INFO] [Rank 0] step={i}, skipped=0, lr=[0.1], mom=[0.9]")
        lines.append(
            f" samples/sec: 6.9 | iteration {i:8}/ 900 | elapsed time per iteration (ms): {4900.5} | lr: 1E-4 |"
        )
    run = read(lines)
    assert times(run) == pytest.approx(4.9005)
    assert run.info["note"].endswith("Megatron-LM, step times as its lines state them")


def test_few_stated_times_do_not_hide_a_long_series(read):
    lines = [f"[{stamp(4 * i)}] [INFO] [Rank 0] step={i}, skipped=0, lr=[0.1]" for i in range(1, 90)]
    lines[3:3] = [f" iteration {i}/ 900 | elapsed time per iteration (ms): 9.5 |" for i in (1, 2, 3)]
    assert len(read(lines).steps.steps) > 80


def test_time_in_steps_counts_all_steps_that_a_record_stands_for(read):
    run = read([f"iter {i}: loss 2.5, time 500.00ms, mfu 30.1%" for i in range(0, 200, 10)])
    assert facts.total_seconds(run, _nothing_found()) == pytest.approx(100.0)


def _nothing_found():
    from starprof.analysis import diagnose
    from starprof.importers.base import run_of
    from starprof.importers.source import Source

    return diagnose(run_of("x", [Source("x", None)]))


def test_speeds_of_one_digit_are_timed_by_the_running_time_beside_them(read):
    ends = "wall={}, train_wall={}"
    run = read(
        [
            f"| epoch 001: {50 * i} / 1891 loss=9.5, ups=0.5, num_updates={50 * i}, {ends.format(91 * i, 85 * i)}"
            for i in range(1, 20)
        ]
    )
    assert times(run) == pytest.approx(1.82)


def test_running_time_that_is_written_with_an_exponent_is_no_trouble(read):
    lines = [f"epoch 001: {i} / 99 loss=9.5, ups=2.5{i % 9}, num_updates={i}, wall={i}e2" for i in range(1, 20)]
    assert times(read(lines))[0] == pytest.approx(1 / 2.51)


def test_records_of_several_lines_are_put_together(read):
    lines = []
    for i in range(1, 30):
        lines += [f"[batch={20 * i}/4800]:", "\t Train time/epoch: 0", f"\t Train trainer/global_step: {20 * i - 1}"]
        lines += [f"\t Train throughput/batches_per_sec: {0.125 + i / 1000:.4f}", "\t Train loss/train/total: 9.5"]
    run = read(lines)
    assert run.steps.steps.tolist() == [20 * i for i in range(1, 30)]
    assert times(run)[0] == pytest.approx(1 / 0.126)
    assert run.ranks[0].detail["steps_per_record"] == 20


def test_a_speed_without_the_first_line_of_its_record_is_none(read):
    with pytest.raises(InputError):
        read([f"    throughput/device/batches_per_second=0.2{i}" for i in range(30)])


MORE = {
    "maskrcnn-benchmark": "INFO: eta: 11:21:28  iter: {step}  loss: 1.4  time: {time} (0.46)  data: 0.0164 (0.0177)",
    "mmdetection 1": "{stamp} - mmdet - INFO - Epoch [1][{step}/7517]\teta: 4:44:04, time: {time}, data_time: 0.03",
    "torchtitan": "[rank0]:[titan] {stamp} - root - INFO - step: {step:2}  loss:  7.6  tps: 10,050  mfu: 13.99%",
    "torchtitan in colour": "[titan] {stamp} - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss:  7.6\x1b[39m",
    "DLLogger": "DLL {stamp} - Training Epoch: 1 Training Iteration: {step}  step_loss : 0.69  learning_rate : 1.5e-05",
    "NeMo Automodel": "{stamp} | INFO | train | epoch=0 step={step} loss=2.5 lr=2.6e-05",
    "OLMo by its stamps": "{stamp}\tn1:0\ttrain:967\tINFO\t[step={step}/739328,epoch=0]",
    "GPT-NeoX": " samples/sec: 6.9 | iteration {step:8}/ 9000 | elapsed time per iteration (ms): {ms} | lm_loss: 1.1 |",
}


@pytest.mark.parametrize("name", MORE)
def test_steps_of_other_frameworks_are_read(read, name):
    lines = [MORE[name].format(step=10 * i, time=2.5, ms=2500.0, stamp=stamp(25 * i)) for i in range(1, 25)]
    run = read(lines)
    assert run.info["timing"] == "job"
    assert times(run) == pytest.approx(2.5)
    assert run.ranks[0].detail["steps_per_record"] in (10, 20)


def test_epochs_alone_are_no_steps(read):
    with pytest.raises(InputError):
        read([f"{stamp(60 * e)} [INFO] Epoch {e}, Time {60 * e}.5s, Loss 0.5" for e in range(1, 30)])
