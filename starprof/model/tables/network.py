"""Tables of network counters: interfaces and TCP sockets."""

from starprof.model.columns import AT, NODE_KEY, Table, counter, gauge, key, text

NIC_SAMPLE = Table(
    17,
    "nic_sample",
    "Network interfaces of the node (never credited to a process).",
    (
        NODE_KEY,
        AT,
        key("nic", "id, see table nic; the same after a restart of the agent"),
        counter("rx_bytes", "received"),
        counter("tx_bytes", "sent"),
        counter("rx_packets", "packets received"),
        counter("tx_packets", "packets sent"),
        counter("rx_dropped", "receive drops"),
        counter("tx_dropped", "send drops"),
        counter("rx_errors", "receive errors"),
        counter("tx_errors", "send errors"),
        gauge("speed_mbit", "link speed, NULL when unknown"),
        gauge("up", "1 when the link is up"),
        counter("qdisc_backlog_drops", "drops of the root queue discipline"),
        gauge("qdisc_backlog_bytes", "bytes waiting in the root queue discipline"),
        counter("qdisc_overlimits", "times the root queue discipline held packets back"),
        counter("rx_pause_frames", "pause frames received, all priorities (802.3x and PFC), NULL when not counted"),
        counter("tx_pause_frames", "pause frames sent, all priorities"),
        counter("rx_prio0_packets", "packets received in priority 0, the class without PFC by default"),
        counter("rx_other_prio_packets", "packets received in priorities 1 to 7"),
        counter("xmit_wait_ticks", "InfiniBand: ticks with data to send but no credit or turn to send it"),
    ),
    packed=True,
    sampled=True,
)

NIC = Table(
    18,
    "nic",
    "The interfaces of nic_sample. Written again when something changes: the last row of an id is valid.",
    (
        NODE_KEY,
        key("nic", "id"),
        text("name", "interface or port name"),
        text(
            "type",
            "ethernet, bond, bond-member, virtual, loopback, infiniband; a bond counts its members again, virtual ones "
            "what passes below them",
        ),
        text("master", "bond or bridge it belongs to"),
        text("qdisc", "root queue discipline"),
        text("addresses", "IP addresses, comma separated"),
    ),
)

TCP_SAMPLE = Table(
    19,
    "tcp_sample",
    "TCP sockets of the ranks, 1 Hz (inet_diag).",
    (
        NODE_KEY,
        AT,
        key("socket", "id, see table tcp"),
        key("rank", "rank that owns the socket, -1 when not known"),
        gauge("rtt_us", "smoothed round trip"),
        gauge("min_rtt_us", "least round trip seen"),
        gauge("delivery_bytes_per_s", "kernel's delivery rate"),
        counter("acked_bytes", "bytes acknowledged"),
        counter("received_bytes", "bytes received"),
        counter("retransmits", "segments sent again"),
        counter("busy_us", "time with data in flight"),
        counter("rwnd_limited_us", "time held back by the receiver"),
        counter("sndbuf_limited_us", "time held back by the send buffer"),
        gauge("unacked", "segments in flight"),
        gauge("send_queue_bytes", "bytes not yet acknowledged"),
    ),
    packed=True,
    sampled=True,
)

TCP = Table(
    20,
    "tcp",
    "End points of tcp_sample.",
    (
        NODE_KEY,
        key("socket", "id"),
        key("rank", "rank that owns it, -1 when not known"),
        text("local", "address:port"),
        text("remote", "address:port"),
    ),
)
