"""A short run of the fuzzer over all formats; `benchmarks/fuzz_importers.py` is the long one."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fuzz import CHANGES, Fault, cases, check, mutate
from samples import samples

from starprof.importers.base import run_of
from starprof.importers.source import Source
from starprof.model.rundata import RankInfo

INPUTS = 2000


@pytest.mark.timeout(1800)
def test_damaged_inputs_give_one_line_or_a_sound_run_in_bounded_time_and_memory(tmp_path):
    fuzz = Path(__file__).with_name("fuzz.py")
    done = subprocess.run(
        [sys.executable, str(fuzz), "--inputs", str(INPUTS), "--seed", "7", "--keep", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=1700,
    )
    figures = json.loads(done.stdout)
    assert figures["faults"] == {}
    assert done.returncode == 0
    assert figures["inputs"] == figures["outcomes"]["read"] + figures["outcomes"]["refused"] == INPUTS
    assert set(figures["read_by_format"]) >= {s.format for s in samples()}


def test_the_same_seed_gives_the_same_inputs():
    assert list(cases(5, 20)) == list(cases(5, 20))
    assert list(cases(5, 20)) != list(cases(6, 20))


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__)
def test_every_change_takes_any_input(change):
    for data in (b"", b"x", b"1,2\n3,4\n", bytes(range(256))):
        assert isinstance(change(random.Random(1), data, b"other"), bytes)


def test_changes_do_change_something():
    data = samples()[0].files["result_0.txt"]
    assert all(mutate(random.Random(seed), data, b"x") != data for seed in range(20))


def test_run_that_does_not_hold_together_is_a_fault():
    run = run_of(
        "x", [Source("x", None)], ranks=[RankInfo(0, 0, "")], steps=[0, 1], columns={"dur_us": np.ones((1, 2))}
    )
    check(run)
    run.steps.columns["dur_us"][0, 0] = -1.0
    with pytest.raises(Fault):
        check(run)
