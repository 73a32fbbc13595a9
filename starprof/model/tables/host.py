"""Tables of host counters: agent, CPU, memory, processes, control groups, disks, interrupts, NUMA."""

from starprof.model.columns import AT, NODE_KEY, Table, counter, fact, gauge, key, text

AGENT_SAMPLE = Table(
    10,
    "agent_sample",
    "The agent's own cost: shown in every report.",
    (
        NODE_KEY,
        AT,
        counter("cpu_us", "CPU time of the agent since its start"),
        gauge("rss_bytes", "resident memory of the agent"),
        counter("ticks", "sampling rounds since its start"),
        counter("late_ticks", "rounds that began more than half a period late"),
        gauge("fds", "open file descriptors, every ten seconds"),
    ),
    packed=True,
    sampled=True,
)

CPU_SAMPLE = Table(
    11,
    "cpu_sample",
    """Per logical CPU; cpu = -1 is the whole node. With more than 64 logical CPUs their own rows come once a second;
the frequency does always and is NULL in between.""",
    (
        NODE_KEY,
        AT,
        key("cpu", "logical CPU, -1 for the whole node"),
        counter("user_us", "user time incl. nice"),
        counter("system_us", "system time incl. irq and softirq"),
        counter("idle_us", "idle time incl. iowait"),
        counter("iowait_us", "idle with outstanding I/O"),
        counter("steal_us", "time the hypervisor ran somebody else"),
        gauge("freq_khz", "current frequency, NULL when the kernel does not tell"),
    ),
    packed=True,
    sampled=True,
)

NODE_SAMPLE = Table(
    12,
    "node_sample",
    "Whole node: pressure, memory, scheduler. Swap and fault counters once a second, NULL in the rows between.",
    (
        NODE_KEY,
        AT,
        counter("psi_cpu_some_us", "PSI: some task waited for a CPU"),
        counter("psi_memory_some_us", "PSI: some task stalled on memory"),
        counter("psi_memory_full_us", "PSI: all tasks stalled on memory"),
        counter("psi_io_some_us", "PSI: some task stalled on I/O"),
        counter("psi_io_full_us", "PSI: all tasks stalled on I/O"),
        gauge("memory_available_bytes", "MemAvailable"),
        gauge("swap_used_bytes", "swap in use"),
        gauge("dirty_bytes", "dirty page cache"),
        counter("swap_in_pages", "pswpin"),
        counter("swap_out_pages", "pswpout"),
        counter("major_faults", "pgmajfault"),
        counter("context_switches", "ctxt of /proc/stat"),
        gauge("runnable", "procs_running"),
        gauge("blocked_tasks", "procs_blocked"),
    ),
    packed=True,
    sampled=True,
)

PROCESS_SAMPLE = Table(
    13,
    "process_sample",
    """One row per process and tick; rank -1 is a process of no rank (foreign, once a second, only while it uses much
CPU). cpu_us is in every row, run_delay_us and on_cpu_us in every row of a rank's own process. The others are read once
a second, of a rank's children every two (their context switches every six), and NULL in the rows between.""",
    (
        NODE_KEY,
        AT,
        key("pid", "process id"),
        key("rank", "rank whose process tree it belongs to, -1 for a process outside the job"),
        fact("is_rank", "1 for the rank's own process, 0 for its children (loader workers) and foreign ones"),
        counter("cpu_us", "user + system time of all threads"),
        counter("run_delay_us", "time runnable but not running (schedstat), main thread of the process"),
        counter("on_cpu_us", "time running (schedstat), main thread"),
        counter("voluntary_switches", "voluntary context switches, main thread"),
        counter("involuntary_switches", "involuntary context switches, main thread"),
        counter("minor_faults", "minor page faults"),
        counter("major_faults", "major page faults"),
        gauge("threads", "threads"),
        gauge("rss_bytes", "resident memory"),
        gauge("pss_bytes", "proportional memory, read at most once a minute"),
        gauge("last_cpu", "logical CPU it last ran on"),
        gauge("allowed_cpus", "number of CPUs in its affinity mask"),
        counter("read_bytes", "bytes read from storage"),
        counter("write_bytes", "bytes written to storage"),
        counter("blkio_delay_us", "time waiting for block I/O"),
        gauge("fds", "open file descriptors, of a rank's tree every ten seconds"),
        gauge("fds_limit", "how many of them it may have (soft limit), read with fds"),
    ),
    packed=True,
    sampled=True,
)

PROCESS = Table(
    14,
    "process",
    "Names of the processes that were sampled (job's own and heavy foreign ones).",
    (
        NODE_KEY,
        key("pid", "process id"),
        key("rank", "rank it belongs to, -1 for foreign"),
        fact("parent_pid", "parent"),
        text("name", "command name (comm), never its arguments"),
        text("user", "owner"),
        text("cpus", "affinity mask as a list such as 0-3,8"),
        text("cgroup", "cgroup path"),
        AT,
    ),
)

CGROUP_SAMPLE = Table(
    15,
    "cgroup_sample",
    """CPU and memory limits of the groups that ranks run in, every level. Groups with a CPU quota have the quota's
counters in every row; everything else is read once a second and NULL in between.""",
    (
        NODE_KEY,
        AT,
        key("cgroup", "id, see table cgroup"),
        gauge("quota_us", "CPU quota per period, NULL for none"),
        gauge("period_us", "quota period"),
        counter("periods", "nr_periods"),
        counter("throttled_periods", "nr_throttled"),
        counter("throttled_us", "throttled time"),
        counter("cpu_us", "CPU used by the group"),
        gauge("memory_bytes", "memory in use"),
        gauge("memory_limit_bytes", "memory limit, NULL for none"),
        counter("memory_high_events", "times a limit forced reclaim: v2 events high + max, v1 failcnt"),
        counter("oom_kills", "OOM kills in the group"),
    ),
    packed=True,
    sampled=True,
)

CGROUP = Table(
    16,
    "cgroup",
    "The groups of cgroup_sample, and which rank runs below which.",
    (
        NODE_KEY,
        key("cgroup", "id"),
        text("path", "path below the hierarchy's mount"),
        fact("version", "1 or 2"),
        key("rank", "a rank that runs in it or below"),
        fact("depth", "0 = root"),
    ),
)

DISK_SAMPLE = Table(
    21,
    "disk_sample",
    "Block devices and NFS mounts.",
    (
        NODE_KEY,
        AT,
        key("disk", "id, see table disk"),
        counter("read_bytes", "read"),
        counter("write_bytes", "written"),
        counter("reads", "completed reads"),
        counter("writes", "completed writes"),
        counter("read_wait_us", "time reads waited"),
        counter("write_wait_us", "time writes waited"),
        counter("busy_us", "time with I/O in flight"),
        counter("nfs_retransmits", "RPC retransmissions (NFS)"),
    ),
    packed=True,
    sampled=True,
)

DISK = Table(
    22,
    "disk",
    "The devices of disk_sample.",
    (
        NODE_KEY,
        key("disk", "id"),
        text("name", "device or mount point"),
        text("type", "block or nfs"),
    ),
)

IRQ_SAMPLE = Table(
    23,
    "irq_sample",
    "Interrupts per logical CPU; cpu = -1 is the whole node.",
    (
        NODE_KEY,
        AT,
        key("cpu", "logical CPU, -1 for the whole node"),
        counter("interrupts", "hardware interrupts; per CPU they may be NULL in most rows (dear to read)"),
        counter("softirq_net_rx", "NET_RX soft interrupts"),
        counter("softirq_net_tx", "NET_TX soft interrupts"),
    ),
    packed=True,
    sampled=True,
)

NUMA_SAMPLE = Table(
    24,
    "numa_sample",
    "Per NUMA node.",
    (
        NODE_KEY,
        AT,
        key("numa_node", "NUMA node"),
        gauge("free_bytes", "free memory"),
        counter("local_pages", "local_node allocations"),
        counter("other_pages", "other_node allocations"),
        counter("miss_pages", "numa_miss"),
    ),
    packed=True,
    sampled=True,
)
