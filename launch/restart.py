"""Starting a job again after a failure, without the hosts that do not answer any more."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dist_mp.launch.job import STOPPED, JobEnd, watch_job
from dist_mp.launch.mpirun import JobCommand, Mpirun

PROBE_SECONDS = 60.0
_FINAL = (0, 2, STOPPED)
"""Statuses after which nothing is started again: the end, a user's mistake, a state saved on request."""


@dataclass(frozen=True)
class Host:
    """A host of a job and the ranks that it may hold; 0 where the file does not say."""

    name: str
    slots: int = 0


def read_hosts(text: str) -> list[Host]:
    """The hosts of a hostfile of Open MPI (``name slots=4``) or MPICH (``name:4``); comments (#) are left aside."""
    hosts: list[Host] = []
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        name, _, count = words[0].partition(":")
        slots = re.search(r"\bslots\s*=\s*(\d+)", line)
        hosts.append(Host(name, int(slots[1]) if slots else int(count) if count.isdigit() else 0))
    return hosts


def job_hosts(hostfile: str | None, environ: Mapping[str, str]) -> list[Host]:
    """The hosts of a job: those of its hostfile, or of the scheduler's allocation; none where it is this machine."""
    if hostfile is not None:
        return read_hosts(Path(hostfile).read_text())
    if "PBS_NODEFILE" in environ or "LSB_DJOB_HOSTFILE" in environ:
        path = Path(environ.get("PBS_NODEFILE") or environ["LSB_DJOB_HOSTFILE"])
        names = [host.name for host in read_hosts(path.read_text())]
        return [Host(name, names.count(name)) for name in dict.fromkeys(names)]
    if "SLURM_JOB_NODELIST" in environ:
        command = ["scontrol", "show", "hostnames", environ["SLURM_JOB_NODELIST"]]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
        return [Host(name) for name in answer.stdout.split()]
    return []


def answers(mpirun: Mpirun, host: Host, environment: Mapping[str, str], seconds: float = PROBE_SECONDS) -> bool:
    """Whether mpirun can start a process on a host."""
    root = ["--allow-run-as-root"] if mpirun.vendor == "Open MPI" and os.geteuid() == 0 else []
    command = [mpirun.path, "-n", "1", *root, "--host", host.name, "true"]
    probe = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    try:
        return probe.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        if probe.poll() is None:
            os.killpg(probe.pid, signal.SIGKILL)
            probe.wait()


def fewer(hosts: Sequence[Host], left: Sequence[Host], ranks: int) -> int:
    """Ranks on the hosts that are left: those that their slots hold, or the same number a host as before."""
    if all(host.slots for host in hosts):
        return min(ranks, sum(host.slots for host in left))
    return min(ranks, max(1, ranks * len(left) // len(hosts)))


def run_with_restarts(
    restarts: int,
    ranks: int,
    hosts: Sequence[Host],
    command: Callable[[int, str | None], JobCommand],
    alive: Callable[[Host], bool],
    run: Callable[[JobCommand], JobEnd] = watch_job,
) -> int:
    """Run a job, and again up to `restarts` times while it fails; returns the last exit status.

    Args:
        restarts: how often it is started again.
        ranks: of the first start.
        hosts: that the ranks may run on; none for this machine.
        command: makes the command for so many ranks, on the hosts of a hostfile (None: those of the first start).
        alive: whether a host can still run ranks; asked of each host after a failure.
        run: runs a command to its end.
    """
    hosts, hostfile, first = list(hosts), None, True
    with tempfile.TemporaryDirectory(prefix="dist-mp-") as folder:
        while True:
            made = command(ranks, hostfile)
            if first:
                for note in made.notes:
                    print(f"dist-mp: {note}", file=sys.stderr)
            end = run(made)
            if end.status in _FINAL or end.asked or restarts == 0:
                return end.status
            restarts, first = restarts - 1, False
            left = [host for host in hosts if alive(host)]
            without = ""
            if len(left) < len(hosts):
                gone = ", ".join(host.name for host in hosts if host not in left)
                if not left:
                    print(f"dist-mp: no host answers any more: {gone}", file=sys.stderr)
                    return end.status
                ranks = fewer(hosts, left, ranks)
                hosts = left
                hostfile = str(Path(folder) / "hosts")
                lines = [f"{h.name} slots={h.slots}" if h.slots else h.name for h in hosts]
                Path(hostfile).write_text("\n".join(lines) + "\n")
                without = f" without {gone}"
            again = "once more at most" if restarts == 0 else f"up to {restarts + 1} times more"
            print(f"dist-mp: starting {ranks} ranks again{without} ({again})", file=sys.stderr, flush=True)
