"""The summary of a run that is one series for the whole job speaks of no rank."""

import sys
from pathlib import Path

import numpy as np

from starprof.analysis import diagnose
from starprof.reports import terminal

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))
from series_runs import job_run, noise


def test_the_summary_of_a_job_level_series_shows_no_rank():
    seconds = noise(200, cv=0.01) * np.where(np.arange(200) >= 100, 1.2, 1)
    run = job_run(seconds, world_size=384)
    text = terminal.render(run, diagnose(run), terminal.Terminal(width=100))
    assert "one series for the whole job of 384 ranks" in text
    assert "20.0 % slower" in text or "% slower from step 100 on" in text
    assert "Ranks (medians" not in text
    assert "rank 0" not in text
