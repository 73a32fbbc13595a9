import pytest
from device_lab import SECOND_NS, Recorded, write_tree

from starprof.collectors.base import NodeContext, Unavailable
from starprof.collectors.infiniband import InfinibandCollector

T0 = 100 * SECOND_NS
PORT = "class/infiniband/mlx5_0/ports/1"


def port(rcv=0, xmit=0, rate="100 Gb/sec (4X EDR)", state="4: ACTIVE", **counters):
    values = {"port_rcv_data": rcv, "port_xmit_data": xmit, "port_rcv_packets": 5, "port_xmit_packets": 6, **counters}
    files = {f"{PORT}/counters/{name}": f"{value}\n" for name, value in values.items()}
    return {**files, f"{PORT}/rate": f"{rate}\n", f"{PORT}/state": f"{state}\n"}


@pytest.fixture
def infiniband(tmp_path):
    """Open a collector on the ports that the files describe."""

    def open_collector(files):
        write_tree(tmp_path, files)
        collector, rows = InfinibandCollector(), Recorded()
        collector.open(NodeContext(sys=tmp_path), rows)
        return collector, rows

    return open_collector


def test_data_words_have_four_bytes_whatever_the_number_of_lanes(infiniband, tmp_path):
    """1.6147e9 words a second on a 4X port are 6.46 GB/s: 51.7 Gbit/s on a link of 56, never four times as many."""
    collector, rows = infiniband(port(xmit=10**12, rate="56 Gb/sec (4X FDR)"))
    collector.sample(T0, rows)
    write_tree(tmp_path, port(xmit=10**12 + 1_614_700_000, rate="56 Gb/sec (4X FDR)"))
    collector.sample(T0 + SECOND_NS, rows)
    first, second = rows["nic_sample"]
    bytes_per_s = second["tx_bytes"] - first["tx_bytes"]
    assert bytes_per_s == 6_458_800_000
    assert bytes_per_s * 8 / 1e6 < second["speed_mbit"] == 56_000


def test_a_port_is_named_by_device_and_number(infiniband):
    _, rows = infiniband(port())
    assert [(r["name"], r["type"]) for r in rows["nic"]] == [("mlx5_0/1", "infiniband")]


def test_drops_errors_and_credit_waits_have_columns(infiniband):
    files = port(port_xmit_discards=1, port_rcv_errors=2, port_xmit_constraint_errors=3, port_xmit_wait=4)
    files[f"{PORT}/hw_counters/out_of_buffer"] = "5\n"
    collector, rows = infiniband(files)
    collector.sample(T0, rows)
    row = rows["nic_sample"][0]
    assert (row["tx_dropped"], row["rx_errors"], row["tx_errors"], row["xmit_wait_ticks"]) == (1, 2, 3, 4)
    assert row["rx_dropped"] == 5
    assert rows["unavailable"] == []


def test_a_counter_that_the_driver_lacks_is_null_and_named_once(infiniband):
    collector, rows = infiniband(port())
    collector.sample(T0, rows)
    collector.sample(T0 + SECOND_NS, rows)
    assert rows["nic_sample"][-1]["xmit_wait_ticks"] is None
    (reason,) = rows["unavailable"]
    assert reason["source"] == "infiniband.mlx5_0/1"
    assert "counters/port_xmit_wait" in reason["reason"]


def test_a_64_bit_wrap_stays_within_a_cell_and_reads_as_a_reset(infiniband, tmp_path):
    collector, rows = infiniband(port(rcv=2**61 - 1))
    collector.sample(T0, rows)
    write_tree(tmp_path, port(rcv=2**61 + 10))
    collector.sample(T0 + SECOND_NS, rows)
    write_tree(tmp_path, port(rcv=2**64 - 1))
    collector.sample(T0 + 2 * SECOND_NS, rows)
    before, after, last = [r["rx_bytes"] for r in rows["nic_sample"]]
    assert before == 2**63 - 4
    assert after == 40
    assert 0 <= last < 2**63


@pytest.mark.parametrize(("state", "up"), [("4: ACTIVE", 1), ("1: DOWN", 0), ("2: INIT", 0), ("5: ACTIVE_DEFER", 0)])
def test_only_an_active_port_is_up(infiniband, state, up):
    collector, rows = infiniband(port(state=state))
    collector.sample(T0, rows)
    assert rows["nic_sample"][0]["up"] == up


@pytest.mark.parametrize(("rate", "mbit"), [("2.5 Gb/sec (1X SDR)", 2500), ("0 Gb/sec", None), ("", None)])
def test_the_speed_is_the_ports_rate(infiniband, rate, mbit):
    collector, rows = infiniband(port(rate=rate))
    collector.sample(T0, rows)
    assert rows["nic_sample"][0]["speed_mbit"] == mbit


def test_a_counter_without_a_number_is_null(infiniband):
    collector, rows = infiniband(port(rcv="N/A (no PMA)"))
    collector.sample(T0, rows)
    assert rows["nic_sample"][0]["rx_bytes"] is None
    assert rows["nic_sample"][0]["rx_packets"] == 5


def test_a_port_that_stops_answering_leaves_a_gap(infiniband, tmp_path):
    files = port()
    collector, rows = infiniband(files)
    collector.sample(T0, rows)
    write_tree(tmp_path, dict.fromkeys(files, ""))
    collector.sample(T0 + SECOND_NS, rows)
    collector.sample(T0 + 2 * SECOND_NS, rows)
    assert len(rows["nic_sample"]) == 1
    assert [(g["from_mono_ns"], g["reason"]) for g in rows["gap"]] == [(T0, "port mlx5_0/1 can't be read any more")]


def test_a_node_without_infiniband_says_so(tmp_path):
    with pytest.raises(Unavailable, match="no InfiniBand"):
        InfinibandCollector().open(NodeContext(sys=tmp_path), Recorded())
