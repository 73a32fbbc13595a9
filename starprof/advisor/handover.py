"""How to drain a node: commands for whoever runs the cluster. They are printed; what runs them is the user."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

WHY = "starprof: slows a training job down"


def drain_texts(host: str, environ: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Commands by the system that has started the job.

    Args:
        host: to drain.
        environ: of the job, where it is known.
    """
    name = shlex.quote(host)
    job = environ.get("SLURM_JOB_ID", "JOB_ID")
    return {
        "slurm": (
            f"scontrol update nodename={name} state=drain reason={shlex.quote(WHY)}",
            f"scontrol requeue {shlex.quote(job)}",
            f"sbatch --exclude={name} ...",
        ),
        "kubernetes": (
            f"kubectl cordon {name}",
            f"kubectl drain {name} --ignore-daemonsets --delete-emptydir-data",
        ),
        "torch elastic": (
            "# with --nnodes=MIN:MAX and --max-restarts > 0: end that node's agent, the others meet again",
            f"ssh {name} pkill -TERM -f torch.distributed.run",
        ),
    }


RUNNABLE: Mapping[str, Callable[[tuple[str, ...]], tuple[str, ...]]] = {
    "slurm": lambda commands: commands[:1],
    "kubernetes": lambda commands: commands,
}
"""What of the commands can be run as they stand, by system."""


def running_under(environ: Mapping[str, str]) -> str:
    """Which of them the job runs under, as far as its environment tells."""
    if "SLURM_JOB_ID" in environ:
        return "slurm"
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    return "torch elastic"
