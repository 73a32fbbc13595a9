"""The process beside the job: starts it at once, keeps agent and ingester going, and hands on its exit code.

It is what `starprof record` becomes, stays small (standard library only), and holds the run's lock. Nothing that
goes wrong here reaches the job; when this process is killed, the job goes on and the spool is folded in later.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from starprof.errors import SpoolError, StarprofError, TransportError
from starprof.launch import environment, prepare, runinfo, signals
from starprof.launch.advisor import AdvisorKeeper
from starprof.launch.agent import AgentKeeper, WatchKeeper
from starprof.launch.children import Child, start_job
from starprof.launch.console import say
from starprof.launch.finish import Finish
from starprof.launch.ingest import IngestRunner
from starprof.launch.journal import Journal
from starprof.launch.keeper import Keeper
from starprof.launch.link import Link, NoLink, open_link
from starprof.launch.plan import Plan
from starprof.model import events
from starprof.model.env import READER_TOKEN

TICK_S = 5.0
"""Upper bound between two looks at the helpers; a child that ends wakes us at once."""


class Supervisor:
    """One recording on one node, from the start of the job to the end of its last helper.

    Raises:
        StarprofError: the job could not be started.
    """

    def __init__(self, plan: Plan, link: Link) -> None:
        self._link = link
        self._plan = plan
        spool = plan.spool
        self._info = runinfo.describe(plan, run_id=link.run_id, node=link.node)
        try:
            runinfo.write(spool.run_json, self._info)
        except OSError as error:
            raise SpoolError(f"can't record in {spool.root}: {error.strerror}") from error
        self.job = self._start_job()
        helpers = environment.for_helpers(os.environ, pythonpath=plan.pythonpath)
        self._log = spool.root / "helpers.log"
        self._journal = Journal(spool.segments, link.node)
        kept: dict[str, Any] = {"log": self._log, "spool": spool.root}
        self._agent = AgentKeeper(helpers, **kept, node=link.node, rate_hz=plan.rate_hz, journal=self._journal)
        watched, after_s = {**helpers, **_reader(plan)}, plan.watch_after_s
        self._watch = WatchKeeper(watched, **kept, arguments=plan.watch_arguments, after_s=after_s)
        advise = plan.advise if link.holds_run_file else None
        self._advisor = AdvisorKeeper(spool.root, advise, helpers, self._log)
        self._ingest = IngestRunner(spool, plan.target, plan.max_size_bytes, plan.ingest_every_s, helpers, self._log)
        self._complaints: set[str] = set()

    def run(self) -> int:
        """Stand by until the job has ended and its records are in the run file; returns the job's exit code."""
        self._guard(self._start_helpers)
        while self.job.running():
            arrived = signals.wait(self._patience_s())
            if arrived is not None:
                self._pass_on(arrived)
            self._guard(self._tend)
        while (late := signals.wait(0)) is not None:  # the Ctrl-C that ended the job is not meant for what follows
            self._note(late.number)
        self._guard(self._put_back)
        self._guard(self._finish)
        return self.job.exit_code

    def _start_job(self) -> Child:
        plan = self._plan
        variables = environment.for_job(
            os.environ,
            pythonpath=plan.pythonpath,
            spool=plan.spool.root,
            node=self._link.node,
            rate_hz=plan.rate_hz,
            control=plan.control,
        )
        try:
            return start_job(plan.command, variables, plan.signal_mask)
        except OSError as error:
            plan.spool.run_json.unlink()
            raise StarprofError(f"can't start {plan.command[0]!r}: {error.strerror}") from error

    def _start_helpers(self) -> None:
        self._agent.start()
        self._link.start(self._journal)
        self._advisor.start()

    def _patience_s(self) -> float:
        planned = [due_s for keeper in self._keepers() if (due_s := keeper.due_in_s) is not None]
        return min(TICK_S, self._plan.ingest_every_s, *planned)

    def _keepers(self) -> list[Keeper]:
        watched = self._plan.watch and self._link.holds_run_file
        return [self._agent, self._watch] if watched else [self._agent]

    def _pass_on(self, arrived: signals.Arrived) -> None:
        if not arrived.to_group:
            self._guard(lambda: self.job.send(arrived.number))  # a job under sudo may not be ours to signal
        self._note(arrived.number)

    def _note(self, number: int) -> None:
        self._guard(lambda: self._journal.event(events.SIGNAL, value=number, detail=signals.name(number)))

    def _tend(self) -> None:
        for keeper in self._keepers():
            keeper.tend()
        self._advisor.tend()
        if self._link.holds_run_file:
            self._ingest.tend()

    def _put_back(self) -> None:
        """What actuators have changed for this job."""
        from starprof.control.actuators.repair import repair  # what it imports is not kept in memory beside the job

        for undone in repair(ended=self._plan.spool.root):
            if undone.left:
                say(undone.left)

    def _finish(self) -> None:
        self._advisor.stop()
        self._info["ended_unix_ns"] = time.time_ns()
        self._info["exit_code"] = self.job.exit_code
        self._watch.ask_to_stop()
        Finish(self._plan, self._info, self._agent, self._ingest, self._journal, self._link).run()

    def _guard(self, part: Callable[[], object]) -> None:
        """The boundary of the recorder: whatever fails in a part of ours, the job and its exit code come first."""
        try:
            part()
        except Exception as error:  # noqa: BLE001 - see above; the user is told once, the log has the place
            text = f"a part of the recording failed, the job goes on: {error}"
            if text not in self._complaints:
                self._complaints.add(text)
                say(text)
                self._keep_traceback()

    def _keep_traceback(self) -> None:
        try:
            with self._log.open("a") as log:
                traceback.print_exc(file=log)
        except OSError:
            return


def _reader(plan: Plan) -> dict[str, str]:
    """What readers of metrics on other machines have to show."""
    if plan.metrics is None:
        return {}
    from starprof.launch.secret import reader_token, secret_of

    try:
        return {READER_TOKEN: reader_token(secret_of(plan.token_file))}
    except TransportError:
        return {}  # there is none: on this machine none is needed, and elsewhere nothing is served


def main(argv: list[str]) -> NoReturn:
    """Run one recording and leave as the job left."""
    plan = Plan.from_argv(argv)
    os.set_inheritable(plan.lock_fd, False)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        supervisor = Supervisor(plan, _connected(plan))
    except StarprofError as error:
        say(str(error))
        prepare.abandon(plan.spool, plan.lock_fd)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        prepare.abandon(plan.spool, plan.lock_fd)
        sys.exit(128 + signal.SIGINT)
    code = supervisor.run()
    if supervisor.job.ended_by == signal.SIGINT:
        # Dying of it ourselves is what tells a calling shell script that the user wanted to stop it all.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)  # nothing is left to flush, and a thread that still waits for another node must not hold us


def _connected(plan: Plan) -> Link:
    """The link to other nodes; opening it may take a while, so the user can interrupt it."""
    if plan.listen is None and plan.join is None:
        return NoLink(plan)
    before = signal.pthread_sigmask(signal.SIG_SETMASK, set(plan.signal_mask))
    try:
        return open_link(plan)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


if __name__ == "__main__":
    main(sys.argv[1:])
