"""Prometheus metrics: scrapes as text, range queries as JSON and CSV; units, sums, hosts and times."""

import json

import pytest
from metric_texts import source

from starprof.errors import InputError
from starprof.importers.metrics import prometheus
from starprof.importers.metrics.prometheus_text import parse_labels

__all__ = ["source"]
T0 = 1_770_000_000


def read(source, text, name="scrape.prom"):
    file = source(text, name)
    assert prometheus.recognises(file)
    return prometheus.read([file])


def gpu(name, value, gpu=0, host="n1", extra=""):
    return f'DCGM_FI_{name}{{gpu="{gpu}",UUID="GPU-{gpu}",modelName="NVIDIA A100",Hostname="{host}"{extra}}} {value}'


def test_dcgm_metrics_become_columns_of_gpu_sample(source):
    lines = [gpu("DEV_GPU_UTIL", 98), gpu("DEV_POWER_USAGE", 300.5), gpu("DEV_SM_CLOCK", 1410), gpu("DEV_FB_USED", 10),
             gpu("DEV_CLOCK_THROTTLE_REASONS", 4), gpu("PROF_PCIE_RX_BYTES", 7), gpu("DEV_GPU_TEMP", 60)]  # fmt: skip
    run = read(source, "\n".join([*lines, f"node_time_seconds {T0}"]))
    row = run.samples["gpu_sample"].iloc[0]
    assert row["mono_ns"] == T0 * 10**9
    assert (row["util_pct"], row["power_w"], row["sm_clock_mhz"], row["memory_used_bytes"]) == (
        98,
        300.5,
        1410,
        10 * 2**20,
    )
    assert (row["clock_event_reasons"], row["pcie_rx_bytes_per_s"], row["temperature_c"]) == (4, 7, 60)
    assert run.samples["gpu"][["uuid", "nvml_index", "name"]].values.tolist() == [["GPU-0", 0, "NVIDIA A100"]]
    assert run.nodes["host"].tolist() == ["n1"]


@pytest.mark.parametrize("blank", ["2147483632", "9223372036854775792", "140737488355328", "NaN", "+Inf"])
def test_dcgm_blanks_are_null(source, blank):
    run = read(source, "\n".join([gpu("DEV_GPU_TEMP", blank), gpu("DEV_GPU_UTIL", 98)]))
    assert run.samples["gpu_sample"]["temperature_c"].isna().all()


def test_enforced_limit_counts_before_the_set_one(source):
    run = read(source, "\n".join([gpu("DEV_POWER_MGMT_LIMIT", 400), gpu("DEV_ENFORCED_POWER_LIMIT", 250)]))
    assert run.samples["gpu_sample"]["power_limit_w"].tolist() == [250.0]


def test_node_metrics_are_found_behind_thousands_of_other_lines(source):
    others = "".join(f"# HELP node_arp_entries{i} ARP entries\nnode_arp_entries{i} 1\n" for i in range(3000))
    run = prometheus.read([source(f"# HELP go_goroutines x\n{others}node_procs_running 3\n")])
    assert run.samples["node_sample"]["runnable"].tolist() == [3]
    assert prometheus.recognises(source(f"# HELP go_goroutines x\n{others}node_procs_running 3\n"))


def test_change_of_the_last_xid_is_an_event(source):
    scrapes = [[gpu("DEV_XID_ERRORS", x), f"node_time_seconds {T0 + 15 * i}"] for i, x in enumerate((0, 0, 79, 79))]
    run = read(source, "\n".join(line for scrape in scrapes for line in scrape))
    assert run.events[["mono_ns", "kind", "value"]].values.tolist() == [[(T0 + 30) * 10**9, "xid", 79]]


def test_growing_violation_counter_sets_its_reason(source):
    scrapes = [[gpu("DEV_THERMAL_VIOLATION", x), f"node_time_seconds {T0 + 15 * i}"] for i, x in enumerate((5, 5, 9))]
    run = read(source, "\n".join(line for scrape in scrapes for line in scrape))
    assert run.samples["gpu_sample"]["clock_event_reasons"].fillna(-1).tolist() == [-1, 0, 0x20]
    assert "clock event reasons" in run.unavailable["source"].tolist()


def test_cpu_seconds_are_microseconds_per_cpu_and_for_the_node(source):
    seconds = {"user": 10, "nice": 1, "system": 2, "irq": 0, "softirq": 0.5, "idle": 5, "iowait": 1, "steal": 3}
    lines = [f'node_cpu_seconds_total{{cpu="{c}",mode="{m}"}} {v}' for c in (0, 1) for m, v in seconds.items()]
    run = read(source, "\n".join(lines))
    rows = run.samples["cpu_sample"].set_index("cpu")
    assert rows.loc[1, ["user_us", "system_us", "idle_us", "iowait_us", "steal_us"]].tolist() == [
        11e6,
        2.5e6,
        6e6,
        1e6,
        3e6,
    ]
    assert rows.loc[-1, "user_us"] == 22e6
    assert run.nodes["cpus"].tolist() == [2]


def test_node_metrics_go_to_their_tables_in_their_units(source):
    run = read(
        source,
        "\n".join(
            [
                "node_pressure_cpu_waiting_seconds_total 1.5",
                "node_memory_SwapTotal_bytes 100",
                "node_memory_SwapFree_bytes 30",
                'node_network_receive_bytes_total{device="eth0"} 1e9',
                'node_network_receive_drop_total{device="eth0"} 7',
                'node_network_speed_bytes{device="eth0"} 1.25e9',
                'node_disk_io_time_seconds_total{device="sda"} 2',
            ]
        ),
    )
    assert run.samples["node_sample"][["psi_cpu_some_us", "swap_used_bytes"]].values.tolist() == [[1.5e6, 70]]
    assert run.samples["nic_sample"][["rx_bytes", "rx_dropped", "speed_mbit"]].values.tolist() == [[1e9, 7, 10_000]]
    assert run.samples["disk_sample"]["busy_us"].tolist() == [2e6]


def test_infiniband_bytes_are_bytes_already(source):
    lines = ['node_infiniband_port_data_received_bytes_total{device="mlx5_0",port="1"} 6458810000',
             'node_infiniband_rate_bytes_per_second{device="mlx5_0",port="1"} 25000000000']  # fmt: skip
    run = read(source, "\n".join(lines))
    assert run.samples["nic_sample"][["rx_bytes", "speed_mbit"]].values.tolist() == [[6458810000, 200_000]]
    assert run.samples["nic"][["name", "type"]].values.tolist() == [["mlx5_0/1", "infiniband"]]


def test_repeated_series_begins_the_next_scrape(source):
    text = "\n".join(f"{gpu('DEV_GPU_UTIL', u)}\nnode_time_seconds {T0 + 15 * i}" for i, u in enumerate((1, 2, 3)))
    rows = read(source, text).samples["gpu_sample"]
    assert rows["util_pct"].tolist() == [1, 2, 3]
    assert rows["mono_ns"].diff().tolist()[1:] == [15e9, 15e9]


def test_own_time_stamps_of_samples_count_first(source):
    text = f"{gpu('DEV_GPU_UTIL', 1)} {T0 * 1000}\n{gpu('DEV_GPU_UTIL', 2)} {(T0 + 15) * 1000}\n# EOF\n"
    assert read(source, text).samples["gpu_sample"]["mono_ns"].tolist() == [T0 * 10**9, (T0 + 15) * 10**9]


@pytest.mark.parametrize(("name", "time"), [(f"n1-{T0}.prom", T0), ("n1-20260131T103015.prom", 1_769_855_415)])
def test_time_may_stand_in_the_file_name(source, name, time):
    run = read(source, gpu("DEV_GPU_UTIL", 1), name)
    assert run.samples["gpu_sample"]["mono_ns"].tolist() == [time * 10**9]


def test_scrapes_without_times_are_only_in_order(source):
    run = read(source, "\n".join(gpu("DEV_GPU_UTIL", u) for u in (1, 2)))
    assert run.samples["gpu_sample"]["mono_ns"].tolist() == [0, 10**9]
    assert "sample times" in run.unavailable["source"].tolist()
    assert run.nodes["unix_ns"].isna().all()


def test_one_file_per_scrape_is_one_series(source):
    files = [source(gpu("DEV_GPU_UTIL", u), f"scrape-{T0 + u}.prom") for u in (1, 2)]
    rows = prometheus.read(files).samples["gpu_sample"]
    assert rows[["gpu", "util_pct"]].values.tolist() == [[0, 1], [0, 2]]


def test_instance_is_named_by_its_uname(source):
    at = 'instance="10.0.0.1:9100"'
    text = f'node_uname_info{{{at},nodename="n7"}} 1\nnode_procs_running{{{at}}} 3\nnode_vmstat_pgmajfault{{{at}}} 1\n'
    assert read(source, text).nodes["host"].tolist() == ["n7"]


def test_mig_instances_are_gpus_of_their_own(source):
    lines = [gpu("DEV_FB_USED", 1, extra=f',GPU_I_ID="{i}",GPU_I_PROFILE="1g.5gb"') for i in (7, 8)]
    run = read(source, "\n".join(lines))
    assert run.samples["gpu"][["uuid", "mig_parent"]].values.tolist() == [["GPU-0/7", "GPU-0"], ["GPU-0/8", "GPU-0"]]


def test_unknown_metrics_are_ignored_and_counted(source):
    run = read(source, f'{gpu("DEV_GPU_UTIL", 1)}\nnode_load1 3\nmy_app_total{{a="b"}} 3\n')
    assert "2 unknown metrics ignored" in run.info["note"]


def test_labels_with_quotes_commas_and_braces_are_read():
    assert parse_labels(r'a="x,y}",b="q\"r\\",c=""') == {"a": "x,y}", "b": 'q"r\\', "c": ""}
    assert parse_labels('a="x" b="y"') is None
    assert parse_labels("nothing") is None


def answer(*series):
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": list(series)}})


def test_range_query_is_read_with_its_times(source):
    metric = {"__name__": "DCGM_FI_DEV_POWER_USAGE", "gpu": "3", "instance": "n1:9400"}
    run = read(source, answer({"metric": metric, "values": [[T0, "300.5"], [T0 + 15.5, "NaN"]]}), "range.json")
    rows = run.samples["gpu_sample"]
    assert rows["mono_ns"].tolist() == [T0 * 10**9, (T0 + 15) * 10**9 + 5 * 10**8]
    assert rows["power_w"].fillna(-1).tolist() == [300.5, -1]
    assert run.nodes[["host", "unix_ns"]].values.tolist() == [["n1", T0 * 10**9]]


def test_instant_query_is_one_sample(source):
    metric = {"__name__": "DCGM_FI_DEV_POWER_USAGE", "gpu": "3"}
    text = json.dumps(
        {"status": "success", "data": {"resultType": "vector", "result": [{"metric": metric, "value": [T0, "1"]}]}}
    )
    assert read(source, text, "now.json").samples["gpu_sample"]["power_w"].tolist() == [1.0]


@pytest.mark.parametrize(
    "text",
    [
        '{"status":"error","data":{"resultType":"matrix","result":[]}}',
        '{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":"x"}]}}',
        '{"status":"success","data":{"resultType":"matrix","result":[',
        '{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"__name__":"DCGM_FI_DEV_GPU_UTIL"},"values":[[1e300,"1"]]}]}}',
        '{"data":{"resultType":"matrix","result":' + "[" * 10_000_000,
        '{"data":{"resultType":"matrix","result":[{"metric":{"__name__":"x"},"values":'
        + "[" * 1_000_000
        + "]" * 1_000_000
        + "}]}}",
    ],
    ids=["failed", "wrong type", "cut", "no time", "ten million deep", "deep inside a series"],
)
def test_answer_that_is_none_is_refused_in_one_line(source, text):
    with pytest.raises(InputError) as refused:
        read(source, text, "range.json")
    assert "\n" not in str(refused.value)


def test_grafana_table_of_one_column_a_series_is_read(source):
    header = 'Time,"DCGM_FI_DEV_POWER_USAGE{gpu=""0"", Hostname=""n1""}",other'
    text = f"{header}\n2026-01-31 10:00:00,300,x\n2026-01-31 10:00:15,,x\n"
    rows = read(source, text, "grafana.csv").samples["gpu_sample"]
    assert rows["power_w"].fillna(-1).tolist() == [300.0, -1.0]


def test_long_table_with_labels_as_columns_is_read(source):
    name = "DCGM_FI_DEV_POWER_USAGE"
    text = f"metric,timestamp,value,gpu,host\n{name},{T0},300,0,n1\n{name},{T0 * 1000 + 15000},301,0,n1\n"
    run = read(source, text, "long.csv")
    assert run.samples["gpu_sample"]["mono_ns"].tolist() == [T0 * 10**9, (T0 + 15) * 10**9]
    assert run.nodes["host"].tolist() == ["n1"]


@pytest.mark.parametrize("text", ["time,loss\n1,2\n", "# HELP up x\n# TYPE up gauge\nup 1\n", "{}", "a\0b", ""])
def test_other_texts_are_not_taken(source, text):
    assert not prometheus.recognises(source(text))


def test_counters_that_are_reset_stay_as_they_are(source):
    text = "\n".join(
        f'node_network_receive_bytes_total{{device="eth0"}} {v}\nnode_time_seconds {T0 + i}'
        for i, v in enumerate((100, 5))
    )
    assert read(source, text).samples["nic_sample"]["rx_bytes"].tolist() == [100, 5]
