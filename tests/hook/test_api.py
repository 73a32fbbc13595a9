"""`watch`, `step` and `span` in a training script."""

import subprocess
import sys

import pytest

import starprof

SETUP = """
import time
import torch
from torch import nn
import starprof
torch.set_num_threads(1)
model = nn.Linear(20, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def one():
    model(torch.randn(4, 20)).sum().backward()
    optimizer.step()
"""


def test_importing_starprof_loads_neither_torch_nor_the_hook():
    code = "import sys, starprof; print(sorted(m for m in sys.modules if m.startswith(('torch', 'starprof.'))))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_all_is_what_is_exported():
    assert starprof.__all__ == ["__version__", "attach", "balanced", "span", "step", "steps", "watch"]
    assert all(getattr(starprof, name) for name in starprof.__all__)


def test_an_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="wtach"):
        _ = starprof.wtach


def test_without_a_recorder_nothing_happens(job):
    done = job.python(
        SETUP
        + """
before = torch.autograd.backward
starprof.watch(model, optimizer)
with starprof.step(), starprof.span("anything"):
    one()
assert torch.autograd.backward is before
import sys
assert "starprof.hook.install" not in sys.modules
""",
        hook=False,
    )
    assert done.stdout == done.stderr == ""
    assert done.rings == []


def test_watch_records_without_injection(job):
    rank = job.python(
        SETUP
        + """
starprof.watch(model, optimizer)
for _ in range(4):
    one()
""",
        PYTHONPATH="",
    ).only
    assert rank.column("step") == [0, 1, 2, 3]
    assert min(rank.column("forward_us")) > 0


def test_watch_chooses_which_optimizer_ends_a_step(job):
    rank = job.python(
        SETUP
        + """
other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
starprof.watch(model, optimizer)
for _ in range(4):
    other.step()
    other.step()
    one()
"""
    ).only
    assert rank.column("step") == [0, 1, 2, 3]


def test_step_marks_the_steps_of_a_loop_without_an_optimizer(job):
    rank = job.python(
        SETUP
        + """
for _ in range(5):
    with starprof.step():
        time.sleep(0.02)
        one()
        one()
"""
    ).only
    assert rank.column("step") == list(range(5))
    assert set(rank.column("micro_batches")) == {2}
    assert min(rank.column("dur_us")) >= 20_000


def test_a_step_that_raises_is_no_step(job):
    done = job.python(
        SETUP
        + """
for i in range(5):
    with starprof.step():
        if i == 2:
            raise ValueError
""",
        check=False,
    )
    assert done.returncode == 1
    assert done.only.column("step") == [0, 1]
    assert done.only.event("exception")[3] == "ValueError"


def test_spans_count_to_their_columns_and_long_ones_are_named(job):
    rank = job.python(
        SETUP
        + """
for _ in range(3):
    for name in ("data", "h2d", "checkpoint", "eval", "tokenise"):
        with starprof.span(name):
            time.sleep(0.02)
    with starprof.span("short"):
        pass
    one()
""",
    ).only
    for column in ("data_wait_us", "h2d_us", "checkpoint_us", "eval_us", "user_us"):
        assert min(rank.column(column, since=1)) >= 20_000
    kind, step, value, name = rank.event("span")
    assert (kind, step, name) == ("span", 1, "tokenise")
    assert value >= 20_000
    assert all(e[3] != "short" for e in rank.events)


def test_a_script_that_names_a_span_before_it_imports_torch_is_recorded_as_any_other(job):
    done = job.python(
        """
import starprof
with starprof.span("prepare"):
    pass
"""
        + SETUP
        + """
for _ in range(3):
    one()
"""
    )
    assert done.stderr == ""
    assert done.only.column("step") == [0, 1, 2]
