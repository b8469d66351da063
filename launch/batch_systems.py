"""PBS and LSF: written from their manuals. No job of dist_mp has run on either yet."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

from dist_mp.errors import UserError
from dist_mp.launch.request import SchedulerName
from dist_mp.launch.scheduler import JobState, Scheduler

_PBS_WORDS = {
    "Q": "pending",
    "W": "waiting",
    "H": "held",
    "R": "running",
    "B": "running",
    "E": "exiting",
    "S": "suspended",
    "T": "exiting",
    "F": "ended",
    "C": "ended",
    "X": "ended",
}
_LSF_WORDS = {
    "PEND": "pending",
    "WAIT": "waiting",
    "PSUSP": "held",
    "RUN": "running",
    "USUSP": "suspended",
    "SSUSP": "suspended",
    "DONE": "completed",
    "EXIT": "failed",
    "ZOMBI": "failed",
}


class Pbs(Scheduler):
    """PBS Professional and OpenPBS."""

    name: ClassVar[SchedulerName] = "pbs"
    submits_with: ClassVar[str] = "qsub"

    def submit(self, script: str) -> str:
        """``qsub`` answers with the id."""
        return self.must(["qsub", script]).splitlines()[-1]

    def states(self, job_id: str) -> list[JobState]:
        """``qstat -x`` knows jobs that have ended, too, where the server keeps their history."""
        for options in (["-x", "-f"], ["-f"]):
            answer = self.ask(["qstat", *options, job_id])
            if answer.returncode == 0:
                return parse_qstat(answer.stdout)
        return []

    def cancel(self, job_id: str) -> None:
        """``qdel``: SIGTERM, then SIGKILL."""
        self.must(["qdel", job_id])


class Lsf(Scheduler):
    """IBM Spectrum LSF."""

    name: ClassVar[SchedulerName] = "lsf"
    submits_with: ClassVar[str] = "bsub"

    def submit(self, script: str) -> str:
        """``bsub`` reads the script from its standard input and answers ``Job <12> is submitted to queue ...``."""
        said = self.must(["bsub"], Path(script).read_text(encoding="utf-8"))
        match = re.search(r"Job <(\d+)>", said)
        if match is None:
            raise UserError(f"bsub: {' '.join(said.split())[:200]}")
        return match[1]

    def states(self, job_id: str) -> list[JobState]:
        """``bjobs -a`` knows jobs that have ended within CLEAN_PERIOD."""
        fields = "jobid jobindex stat exec_host run_time exit_code delimiter='|'"
        answer = self.ask(["bjobs", "-a", "-noheader", "-o", fields, job_id])
        return parse_bjobs(answer.stdout) if answer.returncode == 0 else []

    def cancel(self, job_id: str) -> None:
        """``bkill``: SIGINT, SIGTERM, SIGKILL."""
        self.must(["bkill", job_id])


def parse_qstat(text: str) -> list[JobState]:
    """The blocks of ``qstat -f``."""
    states = []
    for block in re.split(r"(?m)^Job Id: ", text.replace("\n\t", ""))[1:]:
        job_id, _, rest = block.partition("\n")
        facts = dict(re.findall(r"(?m)^\s+(\S+) = (.*)$", rest))
        word = _PBS_WORDS.get(facts.get("job_state", ""), "unknown")
        reason = facts.get("comment", "") if word == "pending" else ""
        if "Exit_status" in facts:
            word, reason = ("completed" if facts["Exit_status"] == "0" else "failed"), f"status {facts['Exit_status']}"
        nodes = "+".join(host.split("/")[0] for host in facts.get("exec_host", "").split("+"))
        elapsed, limit = facts.get("resources_used.walltime", ""), facts.get("Resource_List.walltime", "")
        states.append(JobState(job_id.strip(), word, nodes, elapsed, limit, reason))
    return states


def parse_bjobs(text: str) -> list[JobState]:
    """Lines of id, index, state, hosts, run time, exit status, with ``|`` between."""
    states = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 6:
            continue
        number, index, word, hosts, elapsed, status = fields
        job_id = number if index in ("0", "-", "") else f"{number}[{index}]"
        hosts = "" if hosts == "-" else hosts
        reason = "" if status in ("-", "") else f"status {status}"
        states.append(JobState(job_id, _LSF_WORDS.get(word, word.lower()), hosts, elapsed, "", reason))
    return states
