"""Tables and test output of pairs: what is taken from them, and what is guessed and said."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from starprof.analysis import diagnose
from starprof.errors import InputError
from starprof.importers.load import load

OUTPUT = """\
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#
# Using devices
#  Rank  0 Group  0 Pid 101 on {first} device  0 [0x1b] NVIDIA H100
#  Rank  1 Group  0 Pid 202 on {second} device  0 [0x1b] NVIDIA H100
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    91.12   11.51   11.51      0    90.81   11.55   11.55      0
  8589934592    2147483648     float     sum      -1   174012   49.36   {large}      0   174001   49.37   {large}    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 30.4363
#
"""


def rows_and_note(tmp_path, text, name="tests.txt"):
    (tmp_path / name).write_text(text)
    run = load([str(tmp_path / name)])
    table = run.link_tests
    rows = list(zip(table["first"], table["second"], (table["bytes_per_s"] / 1e9).round(6), table["kind"], strict=True))
    return rows, run.info["note"]


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("host_a,host_b,busbw\nn1,n2,88.5\nn1,n3,49.5\n", 88.5),
        ("Host1;Host2;busbw (GB/s)\nn1;n2;88.5\nn1;n3;49.5\n", 88.5),
        ("src\tdst\tbandwidth_Gbps\nn1\tn2\t400\nn1\tn3\t200\n", 50.0),
        ("server client throughput(MB/s)\nn1 n2 12000\nn1 n3 6000\n", 12.0),
        ("| node | peer | GB/s |\n|---|---|---|\n| n1 | n2 | 88.5 |\n| n1 | n3 | 49.5 |\n", 88.5),
        ("pair,algbw,busbw\nn1-n2,44,88.5\nn1-n3,25,49.5\n", 88.5),
        ("# measured on Monday\nfrom,to,Gbit/s\nn1,n2,100\nn1,n3,50\n", 12.5),
        ("n1-n2 88.5\nn1-n3 49.5\n", 88.5),
        ("n1 n2 88.5 GB/s\nn1 n3 49.5 GB/s\n", 88.5),
        ("n1 <-> n2: 400Gbit/s\nn1 <-> n3: 200Gbit/s\n".replace(": ", "\t"), 50.0),
    ],
)
def test_tables_of_many_forms_are_understood(tmp_path, text, rate):
    rows, _ = rows_and_note(tmp_path, text)
    assert [row[:2] for row in rows] == [("n1", "n2"), ("n1", "n3")]
    assert rows[0][2] == pytest.approx(rate)


def test_the_guess_is_said(tmp_path):
    _, note = rows_and_note(tmp_path, "host_a,host_b,busbw\nn1,n2,88.5\n n1,n3,2\n")
    assert "places from host_a and host_b, bandwidth from busbw in GB/s (assumed)" in note


def test_what_a_pair_is_said_to_be_is_kept(tmp_path):
    rows, _ = rows_and_note(tmp_path, "644-699 49.36\n284-678 49.28 (x-rack)\n")
    assert [row[3] if isinstance(row[3], str) else None for row in rows] == [None, "x-rack"]
    rows, _ = rows_and_note(tmp_path, "a,b,busbw,rack\nn1,n2,4,same\nn1,n3,5,cross\n")
    assert [row[3] for row in rows] == ["same", "cross"]


def test_only_the_largest_messages_count(tmp_path):
    rows, note = rows_and_note(
        tmp_path, "src,dst,size,busbw\na,b,1024,1.5\na,b,1048576,88\na,c,1024,1.4\na,c,1048576,87\n"
    )
    assert [row[2] for row in rows] == [88, 87]
    assert "largest messages only" in note


def test_a_test_that_failed_has_no_bandwidth(tmp_path):
    rows, _ = rows_and_note(tmp_path, "src,dst,busbw\na,b,88\na,c,N/A\nb,c,87\n")
    assert rows[1][2] != rows[1][2]


def test_hyphens_in_names_don_t_confuse_the_pair(tmp_path):
    rows, _ = rows_and_note(tmp_path, "gpu-01-gpu-02 88\ngpu-01-gpu-03 87\n")
    assert rows[0][:2] == ("gpu-01", "gpu-02")


def test_output_of_nccl_tests_gives_one_row_per_pair(tmp_path):
    for second, rate in (("n2", 88.5), ("n3", 49.5)):
        (tmp_path / f"all_reduce_n1_{second}.log").write_text(OUTPUT.format(first="n1", second=second, large=rate))
    table = load([str(tmp_path)]).link_tests
    assert table["first"].tolist() == ["n1", "n1"]
    assert table["second"].tolist() == ["n2", "n3"]
    assert table["bytes_per_s"].tolist() == [88.5e9, 49.5e9]
    assert table["kind"].tolist() == ["all_reduce"] * 2


def test_several_tests_in_one_file_are_kept_apart(tmp_path):
    text = "".join(OUTPUT.format(first="n1", second=n, large=r) for n, r in (("n2", 88.5), ("n3", 49.5)))
    rows, _ = rows_and_note(tmp_path, text)
    assert [row[1:3] for row in rows] == [("n2", 88.5), ("n3", 49.5)]


def test_two_gpus_of_one_host_are_places(tmp_path):
    text = OUTPUT.format(first="n1", second="n1", large=200.0).replace("on n1 device  0", "on n1 device  7", 1)
    rows, _ = rows_and_note(tmp_path, text)
    assert rows[0][:2] == ("n1 GPU 7", "n1 GPU 0")


def _widened(line, cells):
    """A row with further cells behind both ways of the test."""
    words = line.split()
    return " ".join([*words[:-4], cells, *words[-4:], cells])


def variant(name):
    """The same test between n1 and n2, 88.5 GB/s, as other versions and launchers write it."""
    text = OUTPUT.format(first="n1", second="n2", large="88.50")
    lines = text.splitlines()
    if name == "mpirun --tag-output":
        return "\n".join(f"[1,0]<stdout>:{line}" for line in lines)
    if name == "srun --label":
        return "\n".join(f" 0: {line}" for line in lines)
    if name == "mpiexec -prepend-rank":
        return "\n".join(f"[0] {line}" for line in lines)
    if name == "with time stamps":
        ends = {7: " timestamp", 8: " %Y-%m-%d %H:%M:%S", 9: " 2026-07-09 16:03:21", 10: " 2026-07-09 16:03:25"}
        return "\n".join(line + ends.get(i, "") for i, line in enumerate(lines))
    if name == "with times of single iterations":
        names, row = "  i_min   i_max   i_p99   i_cv%", "  90.1  99.2  98.3  1.25"
        wide = {7: lines[7].replace("#wrong", "#wrong" + names)} | {i: _widened(lines[i], row) for i in (9, 10)}
        return "\n".join(wide.get(i, line) for i, line in enumerate(lines))
    if name == "2.9, no root, errors instead of #wrong":
        old = {7: lines[7].replace("#wrong", "error").replace("  root", "")}
        old |= {i: lines[i].replace("     -1", "") for i in (9, 10)}
        return "\n".join(old.get(i, line).replace("Group  0 ", "") for i, line in enumerate(lines))
    if name == "no sum in the rows of an exchange":
        return "\n".join(line.replace("    sum      -1", "") if i in (9, 10) else line for i, line in enumerate(lines))
    assert name == "pasted without #"
    return text.replace("# ", " ").replace("#\n", "\n")


@pytest.mark.parametrize(
    "name",
    [
        "mpirun --tag-output",
        "srun --label",
        "mpiexec -prepend-rank",
        "with time stamps",
        "with times of single iterations",
        "2.9, no root, errors instead of #wrong",
        "no sum in the rows of an exchange",
        "pasted without #",
    ],
)
def test_output_of_other_versions_and_launchers_is_the_same(tmp_path, name):
    rows, _ = rows_and_note(tmp_path, variant(name))
    assert [row[:2] for row in rows] == [("n1", "n2")]
    assert rows[0][2] == 88.5


def test_processes_that_did_not_find_each_other_tested_no_link(tmp_path):
    text = OUTPUT.format(first="n1", second="n2", large=88.5).replace("Rank  1", "Rank  0")
    with pytest.raises(InputError, match="did not find each other"):
        rows_and_note(tmp_path, text)


def result_file(hosts, bus_bw, **more):
    devices = [{"rank": r, "group": 0, "pid": 7, "hostname": h, "device": 0} for r, h in enumerate(hosts)]
    rows = [
        {"size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "    -1",
         "out_of_place": {"time": 9.0, "alg_bw": rate, "bus_bw": rate, "nwrong": 0.0},
         "in_place": {"time": 9.0, "alg_bw": rate, "bus_bw": rate, "nwrong": None}}
        for size, rate in ((1024, 1.5), (1 << 30, bus_bw))
    ]  # fmt: skip
    return json.dumps(
        {"version": 3, "start_time": "2026-07-09 16:03:21", "args": ["./build/all_reduce_perf", "-J", "x"],
         "env": ["A=b"], "nccl_version": 22902, "config": {"nthreads": 1, "devices": devices}, "results": rows, **more}
    )  # fmt: skip


def test_the_json_file_of_nccl_tests_is_read_like_its_table(tmp_path):
    for other, rate in (("n2", 88.5), ("n3", 49.5)):
        (tmp_path / f"{other}.json").write_text(result_file(("n1", other), rate))
    table = load([str(tmp_path)]).link_tests
    assert table["second"].tolist() == ["n2", "n3"]
    assert table["bytes_per_s"].tolist() == [88.5e9, 49.5e9]
    assert table["kind"].tolist() == ["all_reduce"] * 2


@pytest.mark.parametrize("cut", [0.5, 0.9])
def test_a_json_file_that_is_cut_off_is_refused_in_one_line(tmp_path, cut):
    text = result_file(("n1", "n2"), 88.5)
    with pytest.raises(InputError, match="cut off"):
        rows_and_note(tmp_path, text[: int(cut * len(text))], name="result.json")


@pytest.mark.parametrize("rate", [10**400, -1.0, True, "88", None])
def test_a_json_file_with_a_rate_that_is_none_holds_no_test(tmp_path, rate):
    with pytest.raises(InputError, match="no bandwidth test"):
        rows_and_note(tmp_path, result_file(("n1", "n2"), rate).replace("1.5", "null"), name="result.json")


def test_a_json_file_without_results_is_no_test(tmp_path):
    with pytest.raises(InputError, match="no bandwidth test"):
        rows_and_note(tmp_path, result_file(("n1", "n2"), 88.5, results=[]), name="result.json")


def test_a_test_over_many_hosts_is_no_test_of_a_pair(tmp_path):
    more = "".join(f"#  Rank  {i} Group  0 Pid 1 on n{i} device  0 [0x1b] X\n" for i in range(3, 6))
    text = OUTPUT.format(first="n1", second="n2", large=88.5).replace("#\n#    ", more + "#\n#    ", 1)
    with pytest.raises(InputError, match="over more than two places"):
        rows_and_note(tmp_path, text)


def test_output_without_the_lines_of_the_ranks_takes_the_file_name(tmp_path):
    text = "\n".join(line for line in OUTPUT.splitlines() if "Rank" not in line).format(first="", second="", large=88.5)
    rows, note = rows_and_note(tmp_path, text, name="644-699.log")
    assert rows[0][:2] == ("644", "699")
    assert "file names" in note
    with pytest.raises(InputError, match="between which places"):
        rows_and_note(tmp_path, text, name="output.log")


@pytest.mark.parametrize(
    "text",
    [
        "step,loss\n1,2.5\n2,2.4\n",
        "time,node,gpu_util\n1,n1,99\n2,n1,98\n",
        "1 2 3\n4 5 6\n",
        "epoch 1 0.5\nepoch 2 0.6\n",
        "hello world\n",
        "a,b\n1,2\n3,4\n",
    ],
)
def test_other_tables_are_not_taken_for_tests(tmp_path, text):
    (tmp_path / "other.txt").write_text(text)
    with pytest.raises(InputError, match="no known format"):
        load([str(tmp_path / "other.txt")])


def test_a_line_that_is_no_test_is_an_error_that_shows_it(tmp_path):
    (tmp_path / "t.txt").write_text("a,b,busbw\nn1,n2,4\nnonsense\n")
    with pytest.raises(InputError, match="nonsense"):
        load([str(tmp_path / "t.txt")])


def test_the_reported_pairs_from_file_to_verdict(tmp_path):
    text = "644-699 49.36\n632-641 88.36\n284-678 49.28 x-rack\n641-644 49.30\n404-699 86.81 x-rack\n"
    (tmp_path / "pairs.txt").write_text(text)
    verdict = diagnose(load([str(tmp_path / "pairs.txt")]))
    assert verdict.findings[0].nodes == ("644",)
    assert "Test 284 with 641" in verdict.findings[1].next


CELLS = st.one_of(
    st.sampled_from(
        ["host_a", "host_b", "busbw", "n1", "n1-n2", "88.5", "1e400", "-1", "nan", "GB/s", "", "\x1b[2J", "size"]
    ),
    st.text(max_size=6),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    rows=st.lists(st.lists(CELLS, max_size=5), max_size=8),
    separator=st.sampled_from([",", "\t", " ", ";", "|"]),
    header=st.booleans(),
)
def test_any_text_is_tests_or_one_line(tmp_path, rows, separator, header):
    lines = ([separator.join(["host_a", "host_b", "busbw"])] if header else []) + [separator.join(r) for r in rows]
    file = tmp_path / "t.txt"
    file.write_text("\n".join(lines), encoding="utf-8", errors="replace")
    try:
        run = load([str(file)], "link-tests")
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either is right
    else:
        diagnose(run)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_damaged_output_is_tests_or_one_line(tmp_path, data):
    whole = bytearray(OUTPUT.format(first="n1", second="n2", large=88.5).encode())
    for _ in range(data.draw(st.integers(0, 5))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    file = tmp_path / "t.txt"
    file.write_bytes(whole[: data.draw(st.integers(1, len(whole)))])
    try:
        diagnose(load([str(file)], "link-tests"))
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either is right
