import os

import pytest
from device_lab import SECOND_NS, Recorded, write_tree

from starprof.collectors.base import NodeContext, Unavailable
from starprof.collectors.disk import DiskCollector

T0 = 100 * SECOND_NS
DISKSTATS = """   8       0 sda 100 5 2000 300 40 6 900 70 1 250 370 0 0 0 0 9 8
   8       1 sda1 90 5 1900 290 39 6 890 69 0 240 359
 259       0 nvme0n1 1 0 8 1 2 0 16 2 0 3 3
   7       0 loop0 9 0 9 9 9 0 9 9 0 9 9
   1       0 ram0 9 0 9 9 9 0 9 9 0 9 9
 253       0 dm-0 50 0 1000 150 20 0 450 35 0 125 185
 252       0 zram0 9 0 9 9 9 0 9 9 0 9 9
 104       0 cciss/c0d0 7 0 8 9 1 0 2 3 0 4 5
"""
MOUNTSTATS = """device proc mounted on /proc with fstype proc
device server:/export/data mounted on /mnt/my\\040data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,rsize=1048576
\tage:\t1234
\tevents:\t1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27
\tbytes:\t11 12 13 14 5000000 600000 17 18
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\ttcp 0 0 1 0 0 500 500 0 600 0 2 0 0
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t        READ: 200 203 1 30000 5000000 400 1500 1950 0
\t       WRITE: 50 51 0 600000 7000 30 250 290 0
\t      COMMIT: 5 5 0 500 500 0 10 10 0
device tmpfs mounted on /tmp with fstype tmpfs
"""


@pytest.fixture
def node(tmp_path):
    write_tree(tmp_path / "proc", {"diskstats": DISKSTATS, "self/mountstats": MOUNTSTATS})
    for name in ("sda", "nvme0n1", "loop0", "ram0", "dm-0", "zram0", "cciss!c0d0"):
        (tmp_path / "sys/block" / name / "slaves").mkdir(parents=True)
    (tmp_path / "sys/block/dm-0/slaves/sda").mkdir()
    return NodeContext(proc=tmp_path / "proc", sys=tmp_path / "sys")


def sampled(context):
    collector, rows = DiskCollector(), Recorded()
    collector.open(context, rows)
    collector.sample(T0, rows)
    collector.close()
    names = {r["disk"]: r["name"] for r in rows["disk"]}
    return {names[r["disk"]]: r for r in rows["disk_sample"]}, rows


def test_a_sector_has_512_bytes_and_times_are_microseconds(node):
    row = sampled(node)[0]["sda"]
    assert (row["reads"], row["read_bytes"], row["read_wait_us"]) == (100, 2000 * 512, 300_000)
    assert (row["writes"], row["write_bytes"], row["write_wait_us"]) == (40, 900 * 512, 70_000)
    assert row["busy_us"] == 250_000
    assert row["nfs_retransmits"] is None


def test_only_whole_lowest_devices_are_counted(node):
    """Partitions and LVM would count their disk's bytes again; loop and RAM devices are no storage."""
    assert set(sampled(node)[0]) == {"sda", "nvme0n1", "cciss/c0d0", "/mnt/my data"}


def test_an_nfs_mount_shows_server_bytes_waits_and_retransmissions(node):
    rows, recorded = sampled(node)
    row = rows["/mnt/my data"]
    assert (row["read_bytes"], row["write_bytes"]) == (5_000_000, 600_000)
    assert (row["reads"], row["writes"]) == (200, 50)
    assert (row["read_wait_us"], row["write_wait_us"]) == (1_950_000, 290_000)
    assert row["nfs_retransmits"] == 3 + 1
    assert row["busy_us"] is None
    assert {r["name"]: r["type"] for r in recorded["disk"]}["/mnt/my data"] == "nfs"


def test_a_device_that_is_plugged_in_later_is_named_when_it_appears(node):
    collector, rows = DiskCollector(), Recorded()
    collector.open(node, rows)
    collector.sample(T0, rows)
    (node.sys / "block/sdb").mkdir()
    write_tree(node.proc, {"diskstats": DISKSTATS + "   8      16 sdb 1 0 2 3 4 0 5 6 0 7 8\n"})
    collector.sample(T0 + SECOND_NS, rows)
    assert [r["name"] for r in rows["disk"]].count("sda") == 1
    assert rows["disk"][-1]["name"] == "sdb"


def test_without_sysfs_every_real_device_is_counted(node):
    node.sys = node.sys / "missing"
    assert {"sda", "sda1", "dm-0"} <= set(sampled(node)[0])


def test_without_both_sources_it_is_unavailable(tmp_path):
    with pytest.raises(Unavailable, match="diskstats"):
        DiskCollector().open(NodeContext(proc=tmp_path), Recorded())


def test_what_this_machine_writes_is_seen(tmp_path):
    before, _ = sampled(NodeContext())
    if not before:
        pytest.skip("no block device on this machine")
    with (tmp_path / "data").open("wb") as file:
        file.write(os.urandom(8_000_000))
        os.fsync(file.fileno())
    after, _ = sampled(NodeContext())
    written = sum(after[name]["write_bytes"] - before[name]["write_bytes"] for name in before)
    if not written:
        pytest.skip("the temporary folder is on no block device")
    assert written >= 8_000_000
