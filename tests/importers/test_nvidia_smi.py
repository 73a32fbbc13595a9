"""What `nvidia-smi --query-gpu` and the two `dmon` print, as rows of gpu_sample."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from metric_texts import SMI_HEADER, smi_csv, smi_row, source

from starprof.errors import InputError
from starprof.importers.metrics import dmon, nvidia_smi
from starprof.importers.metrics.units import number

__all__ = ["source"]


def gpu_rows(run):
    return run.samples["gpu_sample"].sort_values(["gpu", "mono_ns"], ignore_index=True)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("71 %", 71.0),
        ("300.00 W", 300.0),
        ("1410 MHz", 1410.0),
        ("40536 MiB", 40536 * 2**20),
        ("0x0000000000000024", 36.0),
        ("Not Active", 0.0),
        ("Active", 1.0),
        ("12", 12.0),
        ("1.5e3 MB/s", 1.5e9),
    ],
)
def test_cells_are_numbers_in_the_units_of_the_tables(text, value):
    assert number(text) == value


@pytest.mark.parametrize(
    "text", ["N/A", "[N/A]", "[Not Supported]", "[Unknown Error]", "-", "", "ERR!", "5 parsecs", "0xzz", "1" * 99]
)
def test_what_is_no_number_is_null_not_zero(text):
    assert math.isnan(number(text))


@given(st.text(max_size=80))
def test_any_cell_is_a_number_or_null(text):
    assert isinstance(number(text), float)


def test_query_rows_become_samples_with_times_from_their_stamps(source):
    run = nvidia_smi.read([source(smi_csv([smi_row(s, g, power=100.0 + g) for s in (0, 1) for g in (0, 1)]))])
    rows = gpu_rows(run)
    assert rows["power_w"].tolist() == [100.0, 100.0, 101.0, 101.0]
    assert rows["gpu"].tolist() == [0, 0, 1, 1]
    assert rows["mono_ns"].diff().tolist()[1] == 1e9
    assert rows["mono_ns"][0] == 1_769_853_600_250_000_000
    assert rows["memory_used_bytes"].isna().all()
    assert run.samples["gpu"]["uuid"].tolist() == ["GPU-00000000-aaaa", "GPU-00000001-aaaa"]
    assert run.steps.steps.size == 0
    assert run.ranks == ()


def test_units_may_stand_in_the_header_alone(source):
    run = nvidia_smi.read([source("index, memory.used [MiB], timestamp\n0, 512, 2026/01/31 10:00:00.000\n")])
    assert gpu_rows(run)["memory_used_bytes"].tolist() == [512 * 2**20]


def test_without_units_memory_is_in_mebibytes(source):
    run = nvidia_smi.read([source("index, memory.used, power.draw\n0, 512, 71.5\n")])
    assert gpu_rows(run)[["memory_used_bytes", "power_w"]].values.tolist() == [[512 * 2**20, 71.5]]


def test_not_supported_is_null_while_the_rest_of_the_row_counts(source):
    text = smi_csv([smi_row(0, 0).replace("300.00 W, 300.00 W", "[Not Supported], [N/A]")])
    rows = gpu_rows(nvidia_smi.read([source(text)]))
    assert rows["power_w"].isna().all()
    assert rows["util_pct"].tolist() == [99.0]


def test_reasons_may_come_one_a_column(source):
    header = "index, utilization.gpu, clocks_throttle_reasons.sw_power_cap, clocks_throttle_reasons.hw_thermal_slowdown"
    rows = gpu_rows(nvidia_smi.read([source(f"{header}\n0, 99, Active, Not Active\n0, 99, Active, Active\n")]))
    assert rows["clock_event_reasons"].tolist() == [0x04, 0x44]


def test_remapped_rows_are_the_sum_of_both_kinds_and_null_when_one_is_missing(source):
    header = "index, remapped_rows.correctable, remapped_rows.uncorrectable"
    rows = gpu_rows(nvidia_smi.read([source(f"{header}\n0, 2, 1\n0, [N/A], 1\n")]))
    assert rows["remapped_rows"].fillna(-1).tolist() == [3.0, -1.0]


def test_unknown_columns_are_ignored_and_counted(source):
    run = nvidia_smi.read([source("index, power.draw, fan.speed [%], pstate\n0, 71, 30 %, P0\n")])
    assert "2 unknown metrics ignored" in run.info["note"]


def test_without_time_stamps_samples_are_taken_a_second_apart_and_that_is_said(source):
    run = nvidia_smi.read([source("index, power.draw\n0, 1\n1, 2\n0, 3\n1, 4\n")])
    assert gpu_rows(run)["mono_ns"].tolist() == [0, 10**9, 0, 10**9]
    assert "sample times" in run.unavailable["source"].tolist()


def test_stamps_without_a_zone_are_no_unix_time(source):
    run = nvidia_smi.read([source(smi_csv([smi_row(0, 0)]))])
    assert run.nodes["unix_ns"].isna().all()
    assert "time zone" in run.unavailable["source"].tolist()


def test_file_without_header_tells_only_what_units_make_certain(source):
    run = nvidia_smi.read([source("GPU-12345678-1, 99 %, 300.00 W, 1410 MHz, 5 MiB, 6 MiB\n" * 2)])
    rows = gpu_rows(run)
    assert rows[["util_pct", "power_w", "sm_clock_mhz"]].values.tolist() == [[99.0, 300.0, 1410.0]] * 2
    assert rows["memory_used_bytes"].isna().all()
    assert "columns" in run.unavailable["source"].tolist()


def test_cut_last_line_and_repeated_header_are_passed_over(source):
    text = smi_csv([smi_row(0, 0)]) + smi_csv([smi_row(1, 0)]) + "2026/01/31 10:0"
    run = nvidia_smi.read([source(text)])
    assert len(gpu_rows(run)) == 2
    assert "1 lines could not be read" in run.info["note"]


def test_gpus_that_cannot_be_told_apart_are_refused(source):
    with pytest.raises(InputError, match="add timestamp and index"):
        nvidia_smi.read([source("power.draw, utilization.gpu\n100, 99\n")])
    text = "timestamp, power.draw\n2026/01/31 10:00:00.000, 1\n2026/01/31 10:00:00.000, 2\n"
    with pytest.raises(InputError, match="told apart"):
        nvidia_smi.read([source(text)])


@pytest.mark.parametrize("name", ["--1", "-00000001-1", "-2"])
def test_a_name_that_was_cut_still_names_a_gpu(source, name):
    rows = [f"{gpu}, 99 %, 300.00 W, 1410 MHz" for _ in range(3) for gpu in ("GPU-00000000-1", name)]
    run = nvidia_smi.read([source("\n".join(rows) + "\n")])
    assert sorted(gpu_rows(run)["gpu"].value_counts()) == [3, 3]


@pytest.mark.parametrize("index", ["--1", "\u00b2"])
def test_a_dmon_row_whose_index_is_no_number_is_passed_over(source, index):
    run = dmon.read([source(DMON + DMON.splitlines()[-1].replace("    1", f"    {index}", 1) + "\n")])
    assert len(gpu_rows(run)) == len(gpu_rows(dmon.read([source(DMON)])))


def test_files_of_several_hosts_are_nodes_named_by_them(source):
    files = [source(smi_csv([smi_row(0, 0)]), f"n{n}.csv") for n in (2, 10)]
    run = nvidia_smi.read(files)
    assert run.nodes["host"].tolist() == ["n2", "n10"]
    assert sorted(gpu_rows(run)["node"]) == [0, 1]


@pytest.mark.parametrize(
    "text", ["a, b, c\n1, 2, 3\n", "step, loss\n1, 0.5\n", "{}", "hello\n", "timestamp, name\n1, 2\n"]
)
def test_other_tables_are_not_taken(source, text):
    assert not nvidia_smi.recognises(source(text))


def test_query_output_is_recognised(source):
    assert nvidia_smi.recognises(source(SMI_HEADER + "\n"))


DMON = """#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem  pviol  tviol     fb  rxpci
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %      %   bool     MB   MB/s
 20260131   10:30:15      0    300     65      -     99     30      0      0   1000     12
 20260131   10:30:15      1    150     66      -     98     30     40      1   1000     12
"""


def test_dmon_columns_are_told_by_its_header(source):
    run = dmon.read([source(DMON)])
    rows = gpu_rows(run)
    assert rows["power_w"].tolist() == [300.0, 150.0]
    assert rows["clock_event_reasons"].tolist() == [0.0, 0x24]
    assert rows["memory_used_bytes"].tolist() == [1000 * 2**20] * 2
    assert rows["pcie_rx_bytes_per_s"].tolist() == [12e6] * 2
    assert rows["mono_ns"].tolist() == [1_769_855_415 * 10**9] * 2


def test_dmon_time_of_day_goes_on_over_midnight(source):
    text = "#Time        gpu    pwr\n#HH:MM:SS    Idx      W\n 23:59:59      0    100\n 00:00:01      0    101\n"
    assert gpu_rows(dmon.read([source(text)]))["mono_ns"].diff().tolist()[1] == 2e9


def test_dmon_without_times_counts_rounds(source):
    text = "# gpu    pwr\n# Idx      W\n    0    100\n    1    101\n    0    102\n    1    103\n"
    run = dmon.read([source(text)])
    assert gpu_rows(run)["mono_ns"].tolist() == [0, 10**9, 0, 10**9]
    assert "sample times" in run.unavailable["source"].tolist()


def test_dcgmi_rows_name_their_entity_and_violations_are_growth(source):
    lines = ["GPU 0  98  300.1  5", "GPU 1  N/A  150.1  5", "GPU 0  98  300.1  5", "GPU 1  97  150.1  90"]
    text = "\n".join(["#Entity   GPUTL   POWER   PVIOL", "ID", *lines])
    rows = gpu_rows(dmon.read([source(text)]))
    assert rows["power_w"].tolist() == [300.1, 300.1, 150.1, 150.1]
    assert rows["util_pct"].fillna(-1).tolist() == [98.0, 98.0, -1.0, 97.0]
    assert rows["clock_event_reasons"].fillna(-1).tolist() == [-1, 0, -1, 4]


def test_damaged_dmon_header_is_none(source):
    with pytest.raises(InputError, match="no metric"):
        dmon.read([source("#gpu-x   pwr\n   0   1\n")])


@given(st.text(alphabet="# gpuEntityGPUTL0123456789-.\n\t,", max_size=300))
def test_any_dmon_text_is_read_or_refused_in_one_line(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("d") / "x.txt"
    path.write_text("# gpu pwr sm\n" + text)
    from starprof.importers.source import Source

    try:
        run = dmon.read([Source(str(path), path)])
    except InputError as refused:
        assert "\n" not in str(refused)  # noqa: PT017 - either outcome is right
    else:
        assert len(run.samples["gpu_sample"]) > 0
