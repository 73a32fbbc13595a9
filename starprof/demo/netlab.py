"""Several hosts on one machine: network namespaces, each with one interface `eth0`, joined by a bridge.

Needs root, or a kernel that lets a user make namespaces: `enter_own_namespace` makes use of that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType

from starprof.errors import StarprofError

SUBNET = "10.231.7"
TOOLS = ("ip", "tc", "unshare")
# As root of a user namespace of our own, `ip netns` still needs a /run that we may write to.
_ENTER = 'mount -t tmpfs starprof /run && exec "$@"'


def enter_own_namespace(command: Sequence[str]) -> None:
    """Make sure that this process may make hosts.

    Nothing to do for root; anybody else becomes `command`, run as the root of a user namespace of its own.

    Raises:
        StarprofError: the tools are missing, or the kernel does not allow it.
    """
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise StarprofError(f"the net fault needs {', '.join(missing)}: install iproute2 and util-linux")
    if os.geteuid() == 0:
        return
    prefix = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--fork", "sh", "-c", _ENTER, "sh"]
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        raise StarprofError("the net fault makes network namespaces, which needs root here: run it with sudo")
    sys.stdout.flush()
    os.execvp(prefix[0], [*prefix, *command])  # noqa: S606 - no shell is wanted


class NetLab:
    """`hosts` namespaces on one bridge, removed on leaving the block; host i has the address 10.231.7.(i + 1)."""

    def __init__(self, hosts: int) -> None:
        self.hosts = hosts
        self._tag = f"sp{os.getpid()}"

    def address(self, host: int) -> str:
        """IP address of a host."""
        return f"{SUBNET}.{host + 1}"

    def inside(self, host: int, command: Sequence[str]) -> list[str]:
        """The command, to be run on a host (which has a host name of its own, too)."""
        named = ["unshare", "--uts", "sh", "-c", f'hostname host{host} && exec "$@"', "sh"]
        return ["ip", "netns", "exec", self._host(host), *named, *command]

    def shape(self, host: int, rate_mbit: float) -> None:
        """Slow a host's interface down to a rate, in its sending direction."""
        rate = f"{rate_mbit:g}mbit"
        _run(
            f"ip netns exec {self._host(host)} tc qdisc replace dev eth0 root tbf rate {rate} burst 64kb latency 500ms"
        )

    def unshape(self, host: int) -> None:
        """The host's interface is as fast as before."""
        _run(f"ip netns exec {self._host(host)} tc qdisc del dev eth0 root")

    def _host(self, host: int) -> str:
        return f"{self._tag}h{host}"

    @property
    def _switch(self) -> str:
        return f"{self._tag}sw"

    def __enter__(self) -> NetLab:
        try:
            _run(f"ip netns add {self._switch}")
            _run(f"ip -n {self._switch} link add br0 type bridge")
            _run(f"ip -n {self._switch} link set br0 up")
            for host in range(self.hosts):
                self._add_host(host)
        except StarprofError:
            self._remove()
            raise
        return self

    def _add_host(self, host: int) -> None:
        name, port = self._host(host), f"{self._tag}p{host}"
        _run(f"ip netns add {name}")
        _run(f"ip -n {self._switch} link add {port} type veth peer name eth0 netns {name}")
        _run(f"ip -n {self._switch} link set {port} master br0 up")
        _run(f"ip -n {name} addr add {self.address(host)}/24 dev eth0")
        _run(f"ip -n {name} link set eth0 up")
        _run(f"ip -n {name} link set lo up")

    def _remove(self) -> None:
        for name in [*(self._host(i) for i in range(self.hosts)), self._switch]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()


def _run(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise StarprofError(f"can't make network namespaces: {command}: {done.stderr.strip()}")
