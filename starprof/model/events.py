"""The vocabulary of `event.kind`. A kind is stable once published; `value` means what stands beside it."""

STEP_LATE_START = "first-step"  # value: us from process start to the first step boundary
GC = "gc"  # value: us of one full (generation 2) collection
CHECKPOINT = "checkpoint"  # value: us of one save
EVALUATION = "eval"  # value: us of one evaluation
COMPILE = "compile"  # value: us of one torch.compile compilation
SPAN = "span"  # value: us; detail: the name that the user gave a long span
HOOK_ERROR = "hook-error"  # value: how many so far; detail: type and place of the swallowed exception
HOOK_NOTE = "hook-note"  # detail: something the hook could not see, e.g. "no step boundary seen"
RANK_START = "rank-start"  # value: pid
RANK_EXIT = "rank-exit"  # value: exit code where known; detail: how (exit, SIGKILL, ...)
EXCEPTION = "exception"  # detail: type of the exception that ended the loop
SIGNAL = "signal"  # value: signal number, sent to the job by or through the recorder
RESTART = "restart"  # value: new attempt
AGENT_RESTART = "agent-restart"  # value: how many so far
THROTTLE = "throttle"  # GPU clock held down; value: NVML reason bits that changed
XID = "xid"  # value: XID number
GPU_LOST = "gpu-lost"  # detail: UUID and what NVML said
NIC_CHANGE = "nic-change"  # detail: interface, and what changed: qdisc, speed, link, appeared, vanished
ALLOC_RETRY = "alloc-retry"  # value: retries in the step
OOM_KILL = "oom-kill"  # value: pid
CLOCK_JUMP = "clock-jump"  # value: us that the wall clock jumped against the monotonic one
DISK_FULL = "disk-full"  # value: rows dropped
BUFFER_FULL = "buffer-full"  # value: rows dropped on a node that could not reach node 0 for long
FAULT_INJECTED = "fault-injected"  # the demo's own fault, for checking; never read by the analysis
