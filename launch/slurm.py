"""Slurm's commands."""

from __future__ import annotations

from typing import ClassVar

from dist_mp.launch.request import SchedulerName
from dist_mp.launch.scheduler import JobState, Scheduler

_QUEUE_FORMAT = "%i|%T|%N|%M|%l|%r"
_ACCOUNT_FIELDS = "JobID,State,NodeList,Elapsed,Timelimit,ExitCode"


class Slurm(Scheduler):
    """Slurm: squeue for what waits or runs, then sacct where there is accounting, then scontrol."""

    name: ClassVar[SchedulerName] = "slurm"
    submits_with: ClassVar[str] = "sbatch"

    def submit(self, script: str) -> str:
        """``sbatch --parsable`` answers with the id, and the cluster's name where there are several."""
        return self.must(["sbatch", "--parsable", script]).splitlines()[-1].split(";")[0]

    def states(self, job_id: str) -> list[JobState]:
        """What the first of the three commands knows; scontrol forgets a job after MinJobAge (300 s by default)."""
        queue = self.ask(["squeue", "--noheader", "--array", "--jobs", job_id, "--format", _QUEUE_FORMAT])
        active = parse_table(queue.stdout) if queue.returncode == 0 else []
        known = {state.job_id for state in active}
        ended = [state for state in self._ended(job_id) if state.job_id not in known]
        return sorted([*active, *ended], key=lambda state: _order(state.job_id))

    def _ended(self, job_id: str) -> list[JobState]:
        fields = ["--noheader", "--parsable2", "--allocations", "--format", _ACCOUNT_FIELDS]
        account = self.ask(["sacct", "--jobs", job_id, *fields])
        if account.returncode == 0 and account.stdout.strip():
            return [state for state in parse_table(account.stdout) if not state.active]
        shown = self.ask(["scontrol", "--oneliner", "show", "job", job_id])
        return parse_details(shown.stdout) if shown.returncode == 0 else []

    def cancel(self, job_id: str) -> None:
        """``scancel``: the ranks get SIGTERM, and KillWait seconds later SIGKILL."""
        self.must(["scancel", job_id])


def parse_table(text: str) -> list[JobState]:
    """Lines of id, state, nodes, elapsed, limit, reason or exit status, with ``|`` between."""
    states = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) == 6:
            states.append(_state(*fields))
    return states


def parse_details(text: str) -> list[JobState]:
    """The lines of ``scontrol --oneliner show job``, a job each."""
    states = []
    for line in text.splitlines():
        facts = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if "JobId" not in facts:
            continue
        job_id = facts["JobId"]
        if "ArrayJobId" in facts:
            job_id = f"{facts['ArrayJobId']}_{facts.get('ArrayTaskId', '')}"
        reason = facts.get("ExitCode", "") if facts.get("JobState") != "PENDING" else facts.get("Reason", "")
        nodes, elapsed, limit = (facts.get(name, "") for name in ("NodeList", "RunTime", "TimeLimit"))
        states.append(_state(job_id, facts.get("JobState", "unknown"), nodes, elapsed, limit, reason))
    return states


def _state(job_id: str, word: str, nodes: str, elapsed: str, limit: str, reason: str) -> JobState:
    nodes = "" if nodes in ("(null)", "None assigned") else nodes
    word = " ".join(word.lower().split())
    exit_status, colon, signal = reason.partition(":")
    if colon and exit_status.isdigit() and signal.isdigit():
        reason = f"status {exit_status}" if signal == "0" else f"signal {signal}"
    return JobState(job_id, word, nodes, elapsed, limit, "" if reason == "None" else reason)


def _order(job_id: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in job_id.split("_"))
