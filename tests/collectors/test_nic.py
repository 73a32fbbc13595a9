import itertools
import subprocess
import sys
import threading
import time

import pytest
from device_lab import SECOND_NS, Namespace, Recorded, Remote, join, write_tree

from starprof.collectors.base import NodeContext, Unavailable
from starprof.collectors.nic import NicCollector
from starprof.collectors.nic_list import MAX_NICS
from starprof.collectors.rtnetlink import Link, Qdisc

T0 = 100 * SECOND_NS
TICK_NS = SECOND_NS // 10
HEAD = "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop fifo frame compressed multicast|bytes ...\n"


def refuse():
    raise OSError(1, "Operation not permitted")


class Route:
    """Scripted answers in place of the routing socket."""

    def __init__(self, *links, qdiscs=None, addresses=None):
        self.answers = {"links": list(links), "qdiscs": qdiscs or {}, "addresses": addresses or {}}
        self.news = False

    def __call__(self):
        return self

    def changed(self):
        news, self.news = self.news, False
        return news

    def links(self):
        return self.answers["links"]

    def qdiscs(self):
        return self.answers["qdiscs"]

    def addresses(self):
        return self.answers["addresses"]

    def close(self):
        pass


class Node:
    """A node with a fake /proc and /sys."""

    def __init__(self, path):
        self.context = NodeContext(node=2, proc=path / "proc", sys=path / "sys")
        self.rows = Recorded()

    def counters(self, **interfaces):
        """Write /proc/net/dev: interface=(rx bytes, tx bytes), the other counters follow from their place."""
        lines = [f"{name:>6}: {rx} 11 12 13 0 0 0 0 {tx} 21 22 23 0 0 0 0\n" for name, (rx, tx) in interfaces.items()]
        write_tree(self.context.proc, {"net/dev": HEAD + "".join(lines)})

    def sys_nic(self, name, index, **attributes):
        files = {f"{name}/{attribute}": f"{value}\n" for attribute, value in attributes.items()}
        write_tree(self.context.sys / "class/net", {f"{name}/ifindex": f"{index}\n", **files})

    def open(self, route):
        collector = NicCollector(route=route, ethtool=refuse)
        collector.open(self.context, self.rows)
        return collector

    def row(self, name):
        ids = {r["nic"]: r["name"] for r in self.rows["nic"]}
        return next(r for r in reversed(self.rows["nic_sample"]) if ids[r["nic"]] == name)

    def types(self):
        return {r["name"]: r["type"] for r in self.rows["nic"]}

    def changes(self):
        return [e["detail"] for e in self.rows["event"] if e["kind"] == "nic-change"]


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def test_counters_are_the_kernels_own(node):
    node.counters(eth0=(1000, 2000))
    node.sys_nic("eth0", 2, speed=25000)
    route = Route(Link(2, "eth0", up=True), qdiscs={2: Qdisc("mq", 300, 4, 5)}, addresses={2: ["10.0.0.1", "fe80::1"]})
    collector = node.open(route)
    collector.sample(T0, node.rows)
    row = node.row("eth0")
    assert (row["node"], row["mono_ns"]) == (2, T0)
    assert (row["rx_bytes"], row["rx_packets"], row["rx_errors"], row["rx_dropped"]) == (1000, 11, 12, 13)
    assert (row["tx_bytes"], row["tx_packets"], row["tx_errors"], row["tx_dropped"]) == (2000, 21, 22, 23)
    assert (row["speed_mbit"], row["up"]) == (25000, 1)
    assert (row["qdisc_backlog_bytes"], row["qdisc_backlog_drops"], row["qdisc_overlimits"]) == (300, 4, 5)
    described = node.rows["nic"][-1]
    assert (described["qdisc"], described["addresses"]) == ("mq", "10.0.0.1,fe80::1")


def test_a_bond_its_members_and_software_interfaces_have_types_of_their_own(node):
    node.counters(
        lo=(1, 1), eth0=(5, 5), eth1=(6, 6), bond0=(11, 11), br0=(1, 1), veth1=(1, 1), ib0=(1, 1), eth2=(2, 2)
    )
    node.open(
        Route(
            Link(1, "lo", up=True, loopback=True),
            Link(2, "eth0", up=True, master=4),
            Link(3, "eth1", up=True, master=4),
            Link(4, "bond0", up=True, kind="bond"),
            Link(5, "br0", up=True, kind="bridge"),
            Link(6, "veth1", up=True, kind="veth", master=5),
            Link(7, "ib0", up=True, ipoib=True),
            Link(8, "eth2", up=True),
        )
    )
    assert node.types() == {
        "lo": "loopback",
        "eth0": "bond-member",
        "eth1": "bond-member",
        "bond0": "bond",
        "br0": "virtual",
        "veth1": "virtual",
        "ib0": "virtual",
        "eth2": "ethernet",
    }
    masters = {r["name"]: r["master"] for r in node.rows["nic"] if r["master"]}
    assert masters == {"eth0": "bond0", "eth1": "bond0", "veth1": "br0"}


@pytest.mark.parametrize("speed", ["-1", "4294967295", "0", "", "unknown"])
def test_a_speed_that_the_driver_does_not_know_is_null(node, speed):
    node.counters(eth0=(1, 1))
    node.sys_nic("eth0", 2, speed=speed)
    node.open(Route(Link(2, "eth0", up=True))).sample(T0, node.rows)
    assert node.row("eth0")["speed_mbit"] is None


def test_the_speed_of_another_namespaces_interface_is_not_taken(node):
    node.counters(eth0=(1, 1))
    node.sys_nic("eth0", 7, speed=100000)
    node.open(Route(Link(2, "eth0", up=True))).sample(T0, node.rows)
    assert node.row("eth0")["speed_mbit"] is None


def test_the_queue_discipline_is_asked_once_a_second_and_null_in_between(node):
    node.counters(eth0=(1, 1))
    collector = node.open(Route(Link(2, "eth0", up=True), qdiscs={2: Qdisc("tbf", 1, 2, 3)}))
    for tick in range(21):
        collector.sample(T0 + tick * TICK_NS, node.rows)
    asked = [r["qdisc_overlimits"] is not None for r in node.rows["nic_sample"]]
    assert [i for i, was in enumerate(asked) if was] == [0, 10, 20]


def test_a_wrapped_counter_is_reported_as_it_is(node):
    node.counters(eth0=(2**32 - 5, 1))
    collector = node.open(Route(Link(2, "eth0", up=True)))
    collector.sample(T0, node.rows)
    node.counters(eth0=(7, 1))
    collector.sample(T0 + TICK_NS, node.rows)
    assert [r["rx_bytes"] for r in node.rows["nic_sample"]] == [2**32 - 5, 7]
    assert len({r["nic"] for r in node.rows["nic_sample"]}) == 1


def test_an_interface_that_vanishes_leaves_an_event_and_a_gap(node):
    node.counters(eth0=(1, 1), eth1=(1, 1))
    route = Route(Link(2, "eth0", up=True), Link(3, "eth1", up=True))
    collector = node.open(route)
    collector.sample(T0, node.rows)
    node.counters(eth0=(2, 2))
    collector.sample(T0 + TICK_NS, node.rows)
    assert node.row("eth0")["mono_ns"] == T0 + TICK_NS
    assert node.row("eth1")["mono_ns"] == T0
    assert node.changes() == ["eth1: vanished"]
    assert [g["reason"] for g in node.rows["gap"]] == ["interface eth1 vanished"]


def test_an_interface_that_is_made_anew_is_another_series(node):
    node.counters(eth0=(100, 100))
    route = Route(Link(2, "eth0", up=True))
    collector = node.open(route)
    collector.sample(T0, node.rows)
    node.counters(eth0=(3, 3))
    route.answers["links"] = [Link(9, "eth0", up=True)]
    route.news = True
    collector.sample(T0 + TICK_NS, node.rows)
    assert len({r["nic"] for r in node.rows["nic_sample"]}) == 2
    assert node.changes() == ["eth0: vanished", "eth0: appeared"]


def test_ids_survive_a_restart_of_the_agent(node):
    node.counters(eth0=(1, 1), eth1=(1, 1))
    node.open(Route(Link(2, "eth0", up=True), Link(3, "eth1", up=True)))
    before = {r["name"]: r["nic"] for r in node.rows["nic"]}
    node.rows = Recorded()
    node.open(Route(Link(3, "eth1", up=True), Link(2, "eth0", up=True)))
    assert {r["name"]: r["nic"] for r in node.rows["nic"]} == before


def test_changes_of_link_speed_and_queue_discipline_are_events(node):
    node.counters(eth0=(1, 1))
    node.sys_nic("eth0", 2, speed=100000)
    route = Route(Link(2, "eth0", up=True), qdiscs={2: Qdisc("mq")})
    collector = node.open(route)
    collector.sample(T0, node.rows)
    node.sys_nic("eth0", 2, speed=25000)
    route.answers.update(links=[Link(2, "eth0", up=False)], qdiscs={2: Qdisc("tbf")})
    route.news = True
    collector.sample(T0 + SECOND_NS, node.rows)
    assert sorted(node.changes()) == [
        "eth0: link down",
        "eth0: root qdisc mq -> tbf",
        "eth0: speed 100000 -> 25000 Mbit/s",
    ]
    assert node.row("eth0")["up"] == 0
    assert node.rows["nic"][-1]["qdisc"] == "tbf"


def test_without_routing_netlink_bytes_and_speed_are_still_there_and_the_reason_is_said(node):
    node.counters(lo=(1, 1), eth0=(5, 6))
    node.sys_nic("eth0", 2, speed=10000, operstate="up")
    (node.context.sys / "class/net/eth0/device").mkdir()
    collector = NicCollector(route=refuse, ethtool=refuse)
    collector.open(node.context, node.rows)
    collector.sample(T0, node.rows)
    row = node.row("eth0")
    assert (row["rx_bytes"], row["speed_mbit"], row["up"], row["qdisc_overlimits"]) == (5, 10000, 1, None)
    assert node.types() == {"lo": "loopback", "eth0": "ethernet"}
    assert [r["source"] for r in node.rows["unavailable"]] == ["nic.link"]


def test_hundreds_of_virtual_interfaces_do_not_crowd_out_the_card(node):
    names = [f"veth{i}" for i in range(200)]
    node.counters(**dict.fromkeys([*names, "eth0"], (1, 1)))
    links = [Link(i + 1, name, up=True, kind="veth") for i, name in enumerate(names)]
    node.open(Route(*links, Link(999, "eth0", up=True))).sample(T0, node.rows)
    assert len(node.rows["nic_sample"]) == MAX_NICS
    assert node.row("eth0")["rx_bytes"] == 1
    assert "201 interfaces" in node.rows["unavailable"][0]["reason"]


def test_without_proc_net_dev_the_source_is_unavailable(tmp_path):
    with pytest.raises(Unavailable, match="net/dev"):
        NicCollector(route=Route).open(NodeContext(proc=tmp_path), Recorded())


@pytest.fixture
def pair():
    """Two hosts, joined by a cable."""
    left, right = Namespace(), Namespace()
    try:
        join(left, right)
        yield left, right
    finally:
        left.delete()
        right.delete()


@pytest.fixture
def remote(pair):
    collector = Remote(pair[0], "starprof.collectors.nic:NicCollector")
    yield collector
    collector.close()


def transfer(left, right, size):
    """Send `size` bytes from left to right over real TCP."""
    code = (
        "import socket,sys\ns=socket.create_server(('10.77.0.2',7777));print(flush=True)\n"
        "c=s.accept()[0]\nn=0\nwhile d:=c.recv(65536):n+=len(d)\nprint(n)"
    )

    receiver = right.popen(sys.executable, "-c", code, stdout=subprocess.PIPE)
    receiver.stdout.readline()
    sender = f"import socket;s=socket.create_connection(('10.77.0.2',7777));s.sendall(bytes({size}));s.close()"
    assert left.popen(sys.executable, "-c", sender).wait(timeout=60) == 0
    received, _ = receiver.communicate(timeout=60)
    assert int(received) == size


def named(rows, name):
    ids = {r["name"]: r["nic"] for r in rows["nic"]}
    return ids[name]


@pytest.mark.root
def test_a_real_namespace_shows_its_own_interfaces_only(remote):
    described = {r["name"]: r for r in remote.opened["nic"]}
    assert described.keys() >= {"lo", "veth0"}
    assert "eth0" not in described
    assert described["veth0"]["type"] == "virtual"
    assert described["veth0"]["addresses"].split(",")[0] == "10.77.0.1"


@pytest.mark.root
def test_bytes_of_a_real_transfer_are_counted_once(pair, remote):
    nic = named(remote.opened, "veth0")
    before = remote.sample(T0).last_by("nic_sample", "nic")[nic]
    transfer(*pair, 5_000_000)
    after = remote.sample(T0 + SECOND_NS).last_by("nic_sample", "nic")[nic]
    assert 5_000_000 <= after["tx_bytes"] - before["tx_bytes"] < 5_600_000
    assert after["rx_bytes"] - before["rx_bytes"] < 500_000
    assert after["up"] == 1


@pytest.mark.root
def test_shaping_by_a_token_bucket_is_visible(pair, remote):
    nic = named(remote.opened, "veth0")
    remote.sample(T0)
    pair[0].tc("qdisc", "add", "dev", "veth0", "root", "tbf", "rate", "40mbit", "burst", "32kb", "limit", "400kb")
    transfer(*pair, 3_000_000)
    rows = remote.sample(T0 + SECOND_NS)
    assert rows.last_by("nic", "nic")[nic]["qdisc"] == "tbf"
    assert [e["detail"] for e in rows["event"]] == ["veth0: root qdisc noqueue -> tbf"]
    assert rows.last_by("nic_sample", "nic")[nic]["qdisc_overlimits"] > 10


@pytest.mark.root
def test_a_full_token_bucket_shows_its_backlog(pair, remote):
    nic = named(remote.opened, "veth0")
    pair[0].tc("qdisc", "add", "dev", "veth0", "root", "tbf", "rate", "4mbit", "burst", "16kb", "limit", "400kb")
    sending = threading.Thread(target=transfer, args=(*pair, 1_000_000))
    sending.start()
    backlog = 0
    for second in itertools.count():
        backlog = max(
            backlog, remote.sample(T0 + second * SECOND_NS).last_by("nic_sample", "nic")[nic]["qdisc_backlog_bytes"]
        )
        if backlog or not sending.is_alive():
            break
        time.sleep(0.02)
    sending.join()
    assert backlog > 0


@pytest.mark.root
def test_interfaces_that_appear_are_renamed_or_lose_their_link_are_noticed_at_the_next_tick(pair, remote):
    left = pair[0]
    left.ip("link", "add", "extra0", "type", "veth", "peer", "name", "other0")
    rows = remote.sample(T0)
    assert {e["detail"] for e in rows["event"]} == {"extra0: appeared", "other0: appeared"}
    left.ip("link", "set", "extra0", "name", "extra1")
    rows = remote.sample(T0 + TICK_NS)
    assert {e["detail"] for e in rows["event"]} == {"extra0: vanished", "extra1: appeared"}
    left.ip("link", "set", "veth0", "down")
    rows = remote.sample(T0 + 2 * TICK_NS)
    assert "veth0: link down" in [e["detail"] for e in rows["event"]]


@pytest.mark.root
def test_all_processes_of_a_namespace_share_its_counters(pair):
    """The reason why bytes are credited to the node, never to a rank."""
    first = Remote(pair[0], "starprof.collectors.nic:NicCollector")
    second = Remote(pair[0], "starprof.collectors.nic:NicCollector")
    try:
        transfer(*pair, 2_000_000)
        ids = [named(r.opened, "veth0") for r in (first, second)]
        seen = [r.sample(T0).last_by("nic_sample", "nic")[ids[0]]["tx_bytes"] for r in (first, second)]
    finally:
        first.close()
        second.close()
    assert ids[0] == ids[1]
    assert min(seen) >= 2_000_000
    assert abs(seen[0] - seen[1]) < 10_000


@pytest.mark.root
def test_a_process_that_still_sees_another_namespaces_sys_takes_nothing_from_it(pair):
    """`nsenter` changes the namespace only; `ip netns exec` also mounts its /sys."""
    pair[0].ip("link", "set", "lo", "name", "eth0")
    inside = Remote(pair[0], "starprof.collectors.nic:NicCollector")
    command = ["nsenter", f"--net=/run/netns/{pair[0].name}"]
    half_inside = Remote(None, "starprof.collectors.nic:NicCollector", prefix=command)
    try:
        whole = inside.sample(T0).last_by("nic_sample", "nic")[named(inside.opened, "veth0")]
        half = half_inside.sample(T0).last_by("nic_sample", "nic")[named(half_inside.opened, "veth0")]
    finally:
        inside.close()
        half_inside.close()
    assert {r["name"]: r["type"] for r in half_inside.opened["nic"]}["eth0"] == "loopback"
    assert half["tx_packets"] >= 0
    assert (whole["speed_mbit"], half["speed_mbit"]) == (10_000, None), "what a veth claims, and nothing"
