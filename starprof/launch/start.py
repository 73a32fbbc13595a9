"""From what the user asked for to the supervisor: check everything, then replace this process by it."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from starprof.control.actuators.repair import repair
from starprof.errors import SpoolError, UsageError
from starprof.launch import environment, prepare
from starprof.launch.address import split_address
from starprof.launch.plan import BUFFER_BYTES, DEFAULT_RATE_HZ, WATCH_AFTER_S, Plan
from starprof.launch.secret import is_loopback
from starprof.launch.signals import WATCHED
from starprof.model import env

MIN_RATE_HZ, MAX_RATE_HZ = 0.1, 100.0


@dataclass(frozen=True, slots=True)
class Wish:
    """The command line of `starprof record` as given; None = not given."""

    command: tuple[str, ...]
    output: str | None = None
    rate_hz: float | None = None
    max_size: str | None = None
    store: str | None = None
    force: bool = False
    node: int | None = None
    listen: str | None = None
    join: str | None = None
    job: str | None = None
    token_file: str | None = None
    control: bool = False
    mode: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    max_lag: int | None = None
    live: bool | None = None
    metrics: str | None = None
    buffer: str | None = None
    advise: str | None = None
    limits: Mapping[str, object] = field(default_factory=dict)
    webhook: str | None = None


def record(wish: Wish) -> NoReturn:
    """Start the recording: same process id, but without everything that the command line needed.

    Raises:
        StarprofError: it can't be recorded; the job was not started.
    """
    plan = decide(wish, os.environ)
    repair()
    try:
        os.set_inheritable(plan.lock_fd, True)
        os.execve(  # noqa: S606 - no shell wanted
            sys.executable,
            environment.helper_argv("starprof.launch.supervisor", *plan.to_argv()),
            {**os.environ, "PYTHONPATH": environment.for_helpers({}, pythonpath=plan.pythonpath)["PYTHONPATH"]},
        )
    except OSError as error:
        prepare.abandon(plan.spool, plan.lock_fd)
        raise SpoolError(f"can't start the recorder: {error.strerror}") from error


def decide(wish: Wish, environ: Mapping[str, str]) -> Plan:
    """Turn the wish into a plan; takes the lock of the run as its last deed.

    Raises:
        UsageError: the arguments contradict each other or make no sense.
        RunFileError: the file exists, or another recorder has it.
        SpoolError: the folder can't be written or has no room.
    """
    prepare.check_command(wish.command)
    node = _node(wish, environ)
    rate_hz = _rate(wish, environ)
    max_size_bytes = None if wish.max_size is None else prepare.size_bytes(wish.max_size)
    run_file = prepare.run_path(wish.output or _default_output(wish), node=node, environ=environ)
    _check_addresses(wish, environ)
    advise = _advise(wish)
    control = _control(wish)
    buffer_bytes = BUFFER_BYTES if wish.buffer is None else prepare.size_bytes(wish.buffer)
    store = _store(wish)
    lock_fd = prepare.claim(run_file, force=wish.force)
    return Plan(
        run_file=str(run_file),
        run_id=uuid.uuid4().hex,
        command=wish.command,
        lock_fd=lock_fd,
        rate_hz=rate_hz,
        max_size_bytes=max_size_bytes,
        store=store,
        node=node,
        listen=wish.listen,
        join=wish.join,
        job=wish.job or environment.job_id(environ),
        token_file=wish.token_file,
        control=control,
        advise=advise,
        # Blocked from here on, so that no signal can fall between the exec and the supervisor's own set-up.
        signal_mask=tuple(sorted(int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED))),
        pythonpath=environ.get("PYTHONPATH"),
        watch=wish.live is not False,
        # Who asks for it wants it now.
        watch_after_s=0.0 if wish.live or wish.metrics else WATCH_AFTER_S,
        buffer_bytes=buffer_bytes,
        metrics=wish.metrics,
    )


def _default_output(wish: Wish) -> str:
    name = prepare.default_name(wish.command, time.time())
    # Joined nodes may share a working directory with node 0 and start in the same second.
    return f"{name}-{{host}}-{os.getpid()}" if wish.join else name


def _node(wish: Wish, environ: Mapping[str, str]) -> int | None:
    if wish.listen:
        if wish.node not in (None, 0):
            raise UsageError("--listen belongs to node 0: leave --node-rank away or give 0")
        return 0
    known = wish.node if wish.node is not None else environment.node_rank(environ)
    if wish.join:
        if wish.node == 0:
            raise UsageError("node 0 is the one that listens: give --join nodes a rank from 1 on, or none")
        return known or None
    return known or 0


def _rate(wish: Wish, environ: Mapping[str, str]) -> float:
    rate_hz = wish.rate_hz
    if rate_hz is None:
        given = environ.get(env.RATE_HZ) or str(DEFAULT_RATE_HZ)
        try:
            rate_hz = float(given)
        except ValueError:
            raise UsageError(f"{env.RATE_HZ}={given!r} is not a number") from None
    if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        raise UsageError(f"the sampling rate must lie between {MIN_RATE_HZ:g} and {MAX_RATE_HZ:g} Hz, not {rate_hz:g}")
    return rate_hz


def _store(wish: Wish) -> str | None:
    """Address of the database, which is there and has let us in; None: a run file."""
    if wish.store is None:
        return None
    from starprof.store.clickhouse import address, client

    if not address.is_address(wish.store):
        raise UsageError(f"--store {wish.store!r} is no database: write it as {address.FORM}")
    if wish.join:
        raise UsageError("--store belongs to node 0: joined nodes send their records there")
    if wish.max_size is not None:
        raise UsageError("--max-size is for run files: a database drops old rows by itself (docs/clickhouse.md)")
    place = address.parse(wish.store)
    if place.run:
        raise UsageError(f"--store {wish.store}: a new run gets an id of its own, leave /{place.run} away")
    connection = client.connect(place)
    try:
        client.prepare(connection, place)
    finally:
        connection.close()
    return place.text


def _control(wish: Wish) -> str | None:
    """What the ranks are told of control; None: nothing, and off means off."""
    if not wish.control and wish.advise != "apply":
        if wish.mode is not None or wish.options or wish.max_lag is not None:
            raise UsageError("--mode, --option and --max-lag need --control")
        return None
    from starprof.control import modes

    name = wish.mode or modes.NATIVE_NAME
    if name == modes.NATIVE_NAME and wish.options:
        raise UsageError("--option needs --mode")
    health = {"health": True} if wish.advise is not None else {}
    # How many ranks there will be is not known yet: they check again.
    wanted = modes.before_start(name, wish.options)
    return json.dumps({"mode": wanted.name, "options": dict(wanted.options), "max_lag": wish.max_lag} | health)


def _advise(wish: Wish) -> str | None:
    """What the advisor is told; None: there is none."""
    if wish.advise is None:
        if wish.limits or wish.webhook is not None:
            raise UsageError("--limit and --webhook need --advise")
        return None
    from starprof.advisor.limits import Authority, Limits

    if wish.advise not in list(Authority):
        raise UsageError(f"--advise is observe, suggest or apply, not {wish.advise!r}")
    if wish.advise == Authority.APPLY and wish.mode is not None:
        raise UsageError("--advise=apply chooses the mode itself: leave --mode away")
    if wish.webhook is not None and not wish.webhook.startswith(("http://", "https://")):
        raise UsageError(f"--webhook is an http address, not {wish.webhook!r}")
    if wish.join:
        return None  # node 0 advises
    return json.dumps({"authority": wish.advise, "limits": Limits.of(wish.limits).to_json(), "webhook": wish.webhook})


def _check_addresses(wish: Wish, environ: Mapping[str, str]) -> None:
    if wish.listen and wish.join:
        raise UsageError("--listen is for node 0 and --join for the others: give one of them")
    if wish.metrics and (wish.join or wish.live is False):
        raise UsageError("--metrics is served by what watches the job, on the node that holds the run file")
    for flag, address in (("--listen", wish.listen), ("--join", wish.join), ("--metrics", wish.metrics)):
        if address is not None:
            split_address(address, flag)
    elsewhere = wish.metrics is not None and not is_loopback(split_address(wish.metrics, "--metrics")[0])
    if elsewhere and not wish.token_file and not environ.get(env.TOKEN):
        raise UsageError(f"--metrics on an address of other machines needs a secret: --token-file or {env.TOKEN}")
    if wish.token_file is not None and not Path(wish.token_file).is_file():
        raise UsageError(f"--token-file {wish.token_file} does not exist")
    if wish.join and not wish.token_file and not environ.get(env.TOKEN):
        raise UsageError(f"--join needs the secret that node 0 printed: set {env.TOKEN} or give --token-file")
