"""Runs with their nodes: lists of hosts, tables of runs, and logs that tell where they ran."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starprof.errors import InputError
from starprof.importers.hostlists import expand
from starprof.importers.placed_runs import is_table, read_runs, read_table
from starprof.importers.source import Source


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1,n2", ("n1", "n2")),
        ("n[01-03,7]", ("n01", "n02", "n03", "n7")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("a;b|c d", ("a", "b", "c", "d")),
        ("a:8,b:8", ("a", "b")),
        ("'x','x'", ("x",)),
        ("n[1-99999999]", ()),
        ("", ()),
    ],
)
def test_lists_of_hosts_are_expanded(text, hosts):
    assert expand(text) == hosts


@given(st.text(alphabet="n0123[]-,; |:", max_size=40))
def test_any_text_is_a_list_or_none(text):
    assert all(name.strip() for name in expand(text))


@pytest.fixture
def table(tmp_path):
    def write(text):
        (tmp_path / "runs.csv").write_text(text)
        return Source("runs.csv", tmp_path / "runs.csv")

    return write


def test_a_row_per_run_with_its_list_of_hosts(table):
    runs = read_table(table("run,model,step_time_ms,nodes\na,x,250,n[1-2]\nb,y,500,n1 n3\n"))
    assert [(r.name, r.seconds, sorted(r.nodes), r.group) for r in runs] == [
        ("a", 0.25, ["n1", "n2"], "x"),
        ("b", 0.5, ["n1", "n3"], "y"),
    ]


def test_a_row_per_run_and_host(table):
    (run,) = read_table(table("job,host,duration_s\na,n1,10\na,n2,12\n"))
    assert (run.seconds, run.nodes) == (12.0, {"n1", "n2"})


def test_rows_without_a_time_or_hosts_are_left_out(table):
    runs = read_table(table("run,step_time_ms,nodes\na,250,n1\nb,,n2\nc,-5,n3\nd,nan,n4\ne,9,\n"))
    assert [run.name for run in runs] == ["a"]


def test_a_table_of_worker_times_is_none_of_runs(table):
    assert not is_table(table("step,worker,time_ms\n0,0,5\n0,1,6\n"))


def test_a_table_without_any_usable_row_is_one_clear_error(table):
    with pytest.raises(InputError, match="no run with a time"):
        read_table(table("run,step_time_ms,nodes\na,5,\nb,7,\n"))


def test_too_many_runs_on_too_many_nodes_are_refused(tmp_path):
    rows = "".join(f"r{i},5,n[{i * 50}-{i * 50 + 49}]\n" for i in range(400))
    (tmp_path / "runs.csv").write_text("run,step_time_ms,nodes\n" + rows)
    with pytest.raises(InputError, match="too many"):
        read_runs([str(tmp_path / "runs.csv")])


def training_log():
    line = "iteration {}/ 40 | elapsed time per iteration (ms): 250.{} | lm loss: 2.0"
    return "\n".join(line.format(i, i % 10) for i in range(40))


def test_logs_tell_their_hosts_by_the_list_of_the_scheduler(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.log").write_text(f"SLURM_JOB_NODELIST={name}[1-2]\n{training_log()}\n")
    runs, left = read_runs([str(tmp_path)])
    assert {run.name: sorted(run.nodes) for run in runs} == {"a": ["a1", "a2"], "b": ["b1", "b2"]}
    assert left == []


def test_a_log_without_hosts_is_left_out_and_named(tmp_path):
    (tmp_path / "a.log").write_text(training_log())
    runs, left = read_runs([str(tmp_path / "a.log")])
    assert (runs, left) == ([], ["a: it names no hosts"])
