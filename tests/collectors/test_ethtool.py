import json
import subprocess
import sys

import pytest
from device_lab import Namespace, join

from starprof.collectors.ethtool import priority_counters


def test_traffic_in_priority_0_only_shows_that_the_lossless_class_is_unused():
    statistics = {f"rx_prio{i}_packets": 0 for i in range(8)} | {"rx_prio0_packets": 11_600_000_000}
    statistics |= {f"rx_prio{i}_pause": 0 for i in range(8)} | {"rx_prio3_pause_duration": 99}
    counters = priority_counters(statistics)
    assert (counters.rx_prio0_packets, counters.rx_other_prio_packets) == (11_600_000_000, 0)
    assert counters.rx_pause_frames == 0


@pytest.mark.parametrize(
    "statistics",
    [
        {"rx_prio3_pause": 5, "rx_global_pause": 2, "tx_prio3_pause": 4, "rx_global_pause_transition": 9},
        {"rx_pfc_ena_frames_pri3": 6, "rx_pfc_ena_frames_pri4": 1, "tx_pfc_ena_frames_pri3": 4},
        {"rx_priority_3_xoff": 7, "tx_priority_3_xoff": 4, "rx_priority_3_xon": 50},
        {"port.rx_priority_3_xoff": 7, "port.tx_priority_3_xoff": 4},
        {"rx_pause_frames": 7, "tx_pause_frames": 4},
    ],
)
def test_pause_frames_are_summed_under_each_drivers_names(statistics):
    counters = priority_counters(statistics)
    assert (counters.rx_pause_frames, counters.tx_pause_frames) == (7, 4)
    assert counters.rx_prio0_packets is None


def test_a_driver_that_counts_neither_has_no_counters():
    assert priority_counters({"rx_queue_0_packets": 5, "peer_ifindex": 3}) is None


ASK = """
import json
from starprof.collectors.ethtool import Ethtool
ethtool = Ethtool()
veth0, none, gone = ethtool.statistics("veth0"), ethtool.priorities("veth0"), ethtool.priorities("nope")
print(json.dumps({"veth0": veth0, "none": none, "gone": gone}))
"""


@pytest.mark.root
def test_the_kernel_answers_with_a_real_drivers_statistics():
    left, right = Namespace(), Namespace()
    try:
        join(left, right)
        process = left.popen(sys.executable, "-c", ASK, stdout=subprocess.PIPE)
        answers = json.loads(process.communicate(timeout=60)[0])
    finally:
        left.delete()
        right.delete()
    assert answers["veth0"]["peer_ifindex"] > 0
    assert all(name and value >= 0 for name, value in answers["veth0"].items())
    assert (answers["none"], answers["gone"]) == (None, None)
