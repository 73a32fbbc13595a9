"""`starprof act` on the processes of a real job: made, shown, taken back, also after a kill."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from actuators_lab import until

from starprof.control.actuators import carry, journal
from starprof.control.actuators.change import RefusedError
from starprof.control.actuators.groups import pids_of
from starprof.control.actuators.processes import threads
from starprof.decision.resources import Amount, Need, Neighbour, NodeUse, reallocate

CPU_ROOT = Path("/sys/fs/cgroup/cpu")
needs_v1 = pytest.mark.skipif(
    os.geteuid() != 0 or not (CPU_ROOT / "cpu.cfs_quota_us").parent.is_dir() or not os.access(CPU_ROOT, os.W_OK),
    reason="no writable cpu hierarchy of control groups v1",
)


def rank_pids(job):
    return [process.pid for process in job.ranks]


def nice_of(job):
    return {os.getpriority(os.PRIO_PROCESS, tid) for pid in rank_pids(job) for tid, _ in threads(pid)}


def affinity_of(job):
    return {tuple(sorted(os.sched_getaffinity(tid))) for pid in rank_pids(job) for tid, _ in threads(pid)}


def our_groups(job):
    """Those that were made for the job."""
    return [path for pid in rank_pids(job) for path in CPU_ROOT.rglob(f"starprof-{pid}-*") if path.is_dir()]


def test_every_thread_is_reached_and_put_back(job):
    before = nice_of(job), affinity_of(job)
    told = job.act("nice", "7", "--dry-run").stdout
    assert told.count("niceness") >= 4
    assert nice_of(job) == before[0], "a dry run changes nothing"
    job.act("nice", "7")
    job.act("affinity", "0")
    assert nice_of(job) == {7}
    assert affinity_of(job) == {(0,)}
    assert "niceness" in job.act("status").stdout
    job.act("undo")
    assert (nice_of(job), affinity_of(job)) == before
    assert job.act("status").stdout == "nothing is changed\n"


def test_io_priority_of_every_thread(job):
    job.act("ionice", "best-effort:6")
    shown = [subprocess.check_output(["ionice", "-p", str(pid)], text=True).strip() for pid in rank_pids(job)]
    assert shown == ["best-effort: prio 6"] * 2
    job.act("undo")
    shown = [subprocess.check_output(["ionice", "-p", str(pid)], text=True).strip() for pid in rank_pids(job)]
    assert "best-effort: prio 6" not in shown


def test_what_somebody_else_has_changed_since_is_left_and_told(job):
    job.act("nice", "3")
    victim = rank_pids(job)[1]
    os.setpriority(os.PRIO_PROCESS, victim, 4)
    done = job.act("undo")
    assert os.getpriority(os.PRIO_PROCESS, victim) == 4
    assert "is 4 by now" in done.stderr
    assert os.getpriority(os.PRIO_PROCESS, rank_pids(job)[0]) == 0
    os.setpriority(os.PRIO_PROCESS, victim, 0)


def test_ranks_obey_between_steps_and_go_back(job):
    before = job.told(0)
    job.act("threads", "3", "--rank", "0")
    job.act("collect", "20")
    job.act("pace", "50M")
    until(lambda: job.told(0) == {"threads": 3, "gc": False}, "rank 0 obeys")
    until(lambda: job.told(1) == {"threads": before["threads"], "gc": False}, "rank 1 collects its garbage in time")
    until(lambda: job.act("status").stdout.count("connections at most 50,000,000 bytes/s each") == 2, "pacing")
    job.act("undo")
    until(lambda: job.told(0) == before, "rank 0 goes back")
    until(lambda: job.told(1) == before, "rank 1 goes back")


def test_a_delay_is_a_wait_in_the_record_not_the_ranks_own_work(job):
    from starprof.control.actuators.measure import Watch

    job.act("delay", "0.05", "--rank", "1")
    until(lambda: "0.05 s longer" in job.act("status").stdout.partition("says:")[2], "the delay")
    watch = Watch(job.here)
    until(lambda: watch.steps().get(1, 0) >= 5, "steps with the delay")
    seen = watch.end()
    watch.close()
    job.act("undo")
    assert seen.iteration_s[1] >= 0.05
    assert seen.iteration_s[1] - seen.own_s[1] >= 0.045


@needs_v1
def test_a_quota_in_a_group_of_ours_and_back_to_the_group_before(job):
    home = (Path(f"/proc/{rank_pids(job)[0]}/cgroup")).read_text()
    job.act("cgroup", "weight=50,cores=0.5")
    (own,) = our_groups(job)
    assert set(rank_pids(job)) <= pids_of(own)
    assert (own / "cpu.shares").read_text() == "512\n"
    assert (own / "cpu.cfs_quota_us").read_text() == "50000\n"
    job.act("undo")
    assert our_groups(job) == []
    assert (Path(f"/proc/{rank_pids(job)[0]}/cgroup")).read_text() == home


@needs_v1
def test_a_killed_session_is_repaired_by_whatever_of_ours_starts_next(job):
    holder = job.holding("cgroup", "cores=0.7", "--for", "600")
    until(lambda: our_groups(job), "the group")
    until(lambda: [e for j in journal.journals() for e in j.entries() if e.made], "the entry")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert our_groups(job), "nobody has put it back yet"
    done = job.act("list")
    assert "put back, left by a process that was killed" in done.stderr
    assert our_groups(job) == []
    assert [e for j in journal.journals() for e in j.entries()] == []


def test_ranks_go_back_by_themselves_when_who_held_them_was_killed(job):
    before = job.told(0)
    holder = job.holding("threads", "5", "--for", "4")
    until(lambda: job.told(0).get("threads") == 5, "the order")
    holder.kill()
    holder.wait()
    until(lambda: job.told(0) == before, "the end of the order")  # nothing of ours has started meanwhile
    job.act("list")


def test_a_session_that_is_asked_to_end_takes_it_back_itself(job):
    holder = job.holding("nice", "6", "--for", "600")
    until(lambda: nice_of(job) == {6}, "the niceness")
    holder.terminate()
    assert holder.wait(60) == 0
    assert nice_of(job) == {0}


def test_the_effect_is_measured(job):
    told = json.loads(job.act("delay", "0.2", "--measure", "3", "--for", "0.1", "--json").stdout)
    before_s, after_s = told["effect"]["iteration_s"]
    assert after_s is not None
    assert after_s >= 0.2
    assert before_s is not None


def test_nobody_outside_the_job_is_touched(job):
    """A ring that names a stranger's process, and a stranger below a rank's launcher, are no members."""
    stranger = subprocess.Popen(["sleep", "600"])
    forged = job.spool.rings / f"n0-{stranger.pid}-1.ring"
    try:
        genuine = next(p for p in job.spool.rings.glob("*.ring") if f"-{rank_pids(job)[1]}-" in p.name)
        data = genuine.read_bytes().replace(
            f'"pid":{rank_pids(job)[1]}'.encode(),
            f'"pid":{stranger.pid}'.ljust(len(f'"pid":{rank_pids(job)[1]}')).encode(),
        )
        forged.write_bytes(data)
        assert stranger.pid not in {member.pid for member in job.here.members()}
        job.act("nice", "9")
        assert os.getpriority(os.PRIO_PROCESS, stranger.pid) == 0
        job.act("undo")
    finally:
        forged.unlink(missing_ok=True)
        stranger.kill()
        stranger.wait()


def test_wrong_questions_are_one_line(job):
    for arguments, code, words in (
        (("fly", "1"), 2, "there is no actuator 'fly'"),
        (("delay",), 2, "delay takes SECONDS"),
        (("delay", "999"), 2, "no number of seconds"),
        (("nice", "1", "--rank", "7"), 2, "rank 7 does not run here"),
        (("affinity", "99999"), 1, "no processor 99999"),
        (("tc", "nosuch0=5M"), 1, "nosuch0"),
        (("undo", "nothing"), 2, "there is no action nothing"),
    ):
        done = job.act(*arguments, check=False)
        assert done.returncode == code, (arguments, done.stderr)
        assert words in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_job_that_ends_takes_its_actions_along(running):
    job = running(world=1).ready()
    job.act("threads", "2")
    assert [e for j in journal.journals() for e in j.entries()]
    job.kill()
    job.act("list")
    assert [e for j in journal.journals() for e in j.entries()] == []
    done = job.act("nice", "1", check=False)
    assert done.returncode == 1
    assert "no such process on this machine" in done.stderr


def test_a_plan_delays_declared_jobs_beside_and_no_others(job):
    beside = Neighbour("beside", 2, 0.1, Amount(10.0, 0.0))
    node = NodeUse("here", Amount(2.0, 0.0), Amount(2.0, 0.0), (beside,))
    plan = reallocate(node, Need("mine", Amount(0.2, 0.0), 0.5))
    assert plan.delays
    with pytest.raises(RefusedError, match="was not declared"):
        carry.carry_out(plan, {}, standing=True)
    (entry,) = carry.carry_out(plan, {"beside": job.here}, standing=True)
    assert [change.new for change in entry.changes] == [pytest.approx(plan.delays[0].delay_s)] * 2
    until(lambda: job.act("status").stdout.count("s longer") == 4, "two changes, and two ranks that say so")
    job.act("undo")
    with pytest.raises(RefusedError, match="the plan refuses"):
        carry.carry_out(reallocate(node, Need("mine", Amount(0.2, 0.0), 0.0)), {"beside": job.here}, standing=True)
