"""Tables of the job: run, attempts, nodes, ranks, steps, events, and what is missing."""

from starprof.model.columns import (
    AT,
    ATTEMPT_KEY,
    NODE_KEY,
    RANK_KEY,
    Column,
    Kind,
    Table,
    Type,
    fact,
    gauge,
    integer,
    key,
    text,
)

RUN = Table(
    1,
    "run",
    "One row: the recording itself.",
    (
        text("run_id", "random id, also in every spool of the run"),
        text("name", "file name without suffix"),
        text("command", "the recorded command line"),
        text("starprof_version", "version that recorded"),
        integer("started_unix_ns", Kind.TIME, "wall clock at the start"),
        integer(
            "ended_unix_ns",
            Kind.TIME,
            "wall clock at the end, NULL while running or after a crash of the recorder",
        ),
        fact("exit_code", "exit code of the job"),
        text("source_format", "format of the files that an imported run came from, NULL when starprof recorded it"),
        text(
            "timing",
            "what the step records of an imported run are: `own` each rank's own time, waiting left out; `wall` each "
            "rank's whole step, waiting included and not told apart; `job` one series for the whole job; NULL as "
            "recorded by the hook",
        ),
    ),
)

ATTEMPT = Table(
    2,
    "attempt",
    "One row per start of the job: the first, and each elastic restart.",
    (
        ATTEMPT_KEY,
        integer("started_mono_ns", Kind.TIME, "first sight of the attempt on its first node"),
        fact("world_size", "ranks that took part"),
    ),
)

NODE = Table(
    3,
    "node",
    "One row per machine (or network namespace) that recorded.",
    (
        NODE_KEY,
        text("host", "host name"),
        text("boot_id", "kernel boot id: equal ids share one monotonic clock"),
        text("kernel", "kernel release"),
        fact("cpus", "online logical CPUs"),
        fact("numa_nodes", "NUMA nodes"),
        fact("memory_bytes", "physical memory"),
        integer("mono_ns", Kind.TIME, "monotonic clock when the row was taken"),
        integer("unix_ns", Kind.TIME, "wall clock at the same moment"),
        text(
            "detail",
            "JSON: CPU model, cgroup version, network interfaces, GPUs, CPUs of each NUMA node, `pci` the place of "
            "cards and GPUs in the PCI tree, `topology` the switches above the node as Slurm tells them",
        ),
    ),
)

CLOCK = Table(
    4,
    "clock",
    "Measured offset of a node's monotonic clock to node 0: add it to compare times.",
    (
        NODE_KEY,
        AT,
        integer("offset_ns", Kind.GAUGE, "node-0 monotonic minus this node's"),
        integer("error_ns", Kind.GAUGE, "bound of the offset's error: the truth lies within +- this"),
        text(
            "method",
            "ping (half of the least round trip), same-boot (0 by definition), causality (collectives)",
        ),
    ),
)

RANK = Table(
    5,
    "rank",
    "One row per rank and attempt: where it ran and what it is.",
    (
        ATTEMPT_KEY,
        RANK_KEY,
        NODE_KEY,
        fact("local_rank", "rank on its node"),
        fact("world_size", "ranks of the job"),
        fact("pid", "process id of the rank"),
        text("device", "cpu, cuda, ..."),
        text("gpu_uuid", "UUID of the physical GPU (or MIG instance) the rank computes on, NULL without one"),
        fact("numa_node", "NUMA node of its GPU or of its CPUs, NULL when they span several"),
        text("cpus", "CPU affinity mask at start, as a list such as 0-3,8"),
        fact("role_dp", "data-parallel position, NULL when not known"),
        fact("role_tp", "tensor-parallel position, NULL when not known"),
        fact("role_pp", "pipeline stage, NULL when not known"),
        text("framework", "what carries the gradients: ddp, fsdp2, collectives, none"),
        text("backend", "torch.distributed backend"),
        text("torch_version", "version of torch in the rank"),
        text(
            "detail",
            "JSON: parameters, buckets, what the hook saw and could not see, what chooses its GPU and interfaces",
        ),
    ),
)

STEP = Table(
    6,
    "step",
    """One row per rank and optimizer step. The spans are exclusive and add up:
dur = data_wait + h2d + forward + backward + blocked + optimizer + gc + checkpoint + eval + compile +
user + unaccounted.""",
    (
        ATTEMPT_KEY,
        RANK_KEY,
        key("step", "optimizer steps of this rank since the attempt began, from 0"),
        integer(
            "start_mono_ns",
            Kind.TIME,
            "step start: the end of the step before; NULL where a source tells durations only",
        ),
        gauge("dur_us", "wall time of the step"),
        gauge("data_wait_us", "waiting for the data loader's next batch"),
        gauge("h2d_us", "host-to-device copies, time of the calling thread"),
        gauge("forward_us", "forward pass"),
        gauge("backward_us", "own backward: without the waiting for the gradients of others"),
        gauge("blocked_us", "in collectives: waiting for others plus the transfer itself"),
        gauge("optimizer_us", "optimizer step"),
        gauge("gc_us", "Python's garbage collector"),
        gauge("checkpoint_us", "saving state"),
        gauge("eval_us", "evaluation"),
        gauge("compile_us", "torch.compile"),
        gauge("user_us", "spans the user named with starprof.span"),
        gauge("unaccounted_us", "the rest of the step"),
        gauge(
            "arrival_us",
            "step start to the last gradient accumulated: this rank is ready to reduce; NULL if not seen",
        ),
        gauge("first_bucket_us", "step start to the first gradient bucket ready; NULL if not seen"),
        gauge("micro_batches", "backward passes in the step"),
        gauge("collectives", "Python-level collectives in the step"),
        gauge("samples", "samples of the batch, NULL when not known"),
        gauge("tokens", "tokens of the batch, NULL when not known"),
        gauge("gpu_forward_us", "forward on the GPU's own clock, NULL without CUDA events"),
        gauge("gpu_backward_us", "own backward on the GPU's own clock"),
        gauge("gpu_blocked_us", "last gradient computed to backward's end on the compute stream"),
        gauge("gpu_optimizer_us", "optimizer on the GPU's own clock"),
        gauge("alloc_retries", "allocator retries in this step (a delta, not the cumulative count)"),
        gauge("hook_ns", "time our own hook took in this step, sampled; NULL when not sampled"),
    ),
    packed=True,
)

EVENT = Table(
    7,
    "event",
    "Things that happen at a moment.",
    (
        NODE_KEY,
        ATTEMPT_KEY,
        RANK_KEY,
        AT,
        key("step", "step of the rank, NULL when not tied to one"),
        Column("kind", Type.TEXT, Kind.FACT, "see starprof.model.events"),
        gauge("value", "duration in us or count, by kind"),
        text("detail", "free text"),
    ),
)

GAP = Table(
    8,
    "gap",
    "What was not recorded, from when to when, and why.",
    (
        text("source", "collector, agent, ring or stream"),
        NODE_KEY,
        RANK_KEY,
        integer("from_mono_ns", Kind.TIME, "last record before the gap, NULL when there was none"),
        integer("to_mono_ns", Kind.TIME, "first record after it, NULL when there was none"),
        gauge("lost_rows", "rows lost, NULL when not known"),
        text("reason", "one line"),
    ),
)

UNAVAILABLE = Table(
    9,
    "unavailable",
    "Sources that could not be read at all, and why (never silently zero).",
    (
        NODE_KEY,
        text("source", "collector or field"),
        text("reason", "one line, with the missing capability or file"),
    ),
)
