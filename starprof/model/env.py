"""Environment variables that carry a recording from the launcher to the ranks and agents.

Precedence everywhere: command-line flag, then `STARPROF_*`, then the default.
"""

SPOOL = "STARPROF_SPOOL"
"""Spool directory of the run. Set: the hook records. Unset or empty: off means off."""

NODE = "STARPROF_NODE"
"""Integer id of this node within the run (0 is the node that holds the run file)."""

HOME = "STARPROF_HOME"
"""Directory that contains the `starprof` package, so that a job interpreter without it can import the hook."""

RATE_HZ = "STARPROF_RATE_HZ"
"""Sampling rate of the cheap counters in Hz (default 10; dear ones run at a tenth of it, 1 Hz at most)."""

TOKEN = "STARPROF_TOKEN"  # noqa: S105 - the name of the variable, not a secret
"""Shared secret with which nodes authenticate to each other."""

CLICKHOUSE_PASSWORD = "STARPROF_CLICKHOUSE_PASSWORD"  # noqa: S105 - the name of the variable, not a secret
"""Password for `--store clickhouse://…`; the job itself is started without it."""

CLICKHOUSE_PASSWORD_FILE = "STARPROF_CLICKHOUSE_PASSWORD_FILE"  # noqa: S105 - the name of the variable, not a secret
"""File that holds it instead; only its owner may be able to read it."""

CONTROL = "STARPROF_CONTROL"
"""JSON object with the mode that is wanted. Set: how ranks synchronise can be changed while the job runs."""

CONTROL_GPU = "STARPROF_CONTROL_GPU"
"""Set to 1: models on GPUs may go into rounds as well, which has been tried on none so far."""

CONTROL_NOISE_EVERY = "STARPROF_CONTROL_NOISE_EVERY"
"""Updates from one look at the gradient noise to the next, on all ranks the same; 0: none. 100 if not set."""

ACTUATORS = "STARPROF_ACTUATORS"
"""Names of the actuators that may be used on this job, or `all`; not set: those that act on single processes."""

STATE = "STARPROF_STATE"
"""Folder of what has to outlive a run: old values of what actuators have changed. Not set: the user's own."""

DISABLE = "STARPROF_DISABLE"
"""Set to 1: the hook does nothing at all, also when SPOOL is set."""

READER_TOKEN = "STARPROF_READER_TOKEN"  # noqa: S105 - the name of the variable, not a secret
"""What a reader of metrics shows on an address that other machines reach; made from the secret, see docs/serve.md."""
