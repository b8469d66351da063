"""The examination: by one process that starts ranks to look at, or by the ranks of a job that is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dist_mp.comm.cuda_aware import probe_cuda
from dist_mp.comm.launcher import mismatch
from dist_mp.comm.world import World
from dist_mp.doctor.facts import RankFacts, rank_facts, versions
from dist_mp.doctor.findings import Finding, judge_links, judge_mpirun, judge_ranks
from dist_mp.doctor.links import Link, measure_links
from dist_mp.errors import UserError
from dist_mp.launch.mpirun import Mpirun, find_mpirun, job_command, this_machine

START_SECONDS = 120.0
_TENSORFLOW = (
    "import os; os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'; import tensorflow as tf; "
    "print(tf.__version__, *(d.name.split(':', 1)[1] for d in tf.config.list_physical_devices()), sep='|')"
)


@dataclass
class Examination:
    """What was found."""

    findings: list[Finding] = field(default_factory=list)
    ranks: list[RankFacts] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)

    def to_json(self) -> str:
        """As JSON, with the facts behind the findings."""
        problems = sum(finding.verdict == "problem" for finding in self.findings)
        return json.dumps({"problems": problems, **asdict(self)}, indent=2)


def look_around(world: World) -> Examination | None:
    """Let all ranks look around; the examination on rank 0. Collective."""
    ranks = world.allgather(rank_facts(world))
    links = measure_links(world)
    if world.rank:
        return None
    return Examination([*judge_ranks(ranks), *judge_links(links)], ranks, links)


def examine_job(world: World) -> Examination | None:
    """Examine the job that this process is a rank of; the result on rank 0. Collective."""
    found = look_around(world)
    if found is not None:
        _add_own(found, library=found.ranks[0].library)
    return found


def examine(ranks: int, hostfile: str | None = None) -> Examination:
    """Start so many ranks with mpirun and examine them and this machine."""
    mpirun = _mpirun()
    found = Examination()
    if isinstance(mpirun, Mpirun):
        found = _started(mpirun, ranks, hostfile)
    _add_own(found, library=found.ranks[0].library if found.ranks else {})
    return found


def _add_own(found: Examination, library: Mapping[str, str]) -> None:
    """Add what one process can find out: mpirun, TensorFlow, GPU memory, and the scheduler."""
    if library:
        found.findings.insert(2, judge_mpirun(_mpirun(), library["vendor"], library["version"]))
    else:
        mpirun = _mpirun()
        found.findings.insert(0, Finding("versions", ", ".join(f"{k} {v}" for k, v in versions().items())))
        if isinstance(mpirun, str):
            found.findings.append(judge_mpirun(mpirun, "", ""))
    found.findings.append(_tensorflow())
    gpus = found.ranks[0].gpus if found.ranks else []
    if library:
        support = probe_cuda(0 if gpus else None)
        text = f"{'yes' if support.aware else 'no'}: {support.source}"
        advice = "gradients are staged through host memory (exchange.cuda_aware)"
        note = bool(gpus) and not support.aware
        found.findings.append(Finding("GPU memory in MPI", text, "note" if note else "fine", advice if note else ""))
    found.findings.append(_scheduler(library.get("vendor", "")))


def _mpirun() -> Mpirun | str:
    try:
        return find_mpirun()
    except UserError as error:
        return str(error)


def _started(mpirun: Mpirun, ranks: int, hostfile: str | None) -> Examination:
    """What ranks that mpirun starts see; a problem where they do not start or do not meet."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        program = [sys.executable, "-m", "dist_mp.doctor.rank", str(answer)]
        command = job_command(mpirun, ranks, program, machine=this_machine(), hostfile=hostfile)
        try:
            done = subprocess.run(
                command.argv,
                env={**os.environ, **command.environment},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=START_SECONDS,
                check=False,
            )
            ending, said = f"ended with status {done.returncode}", done.stderr
        except subprocess.TimeoutExpired as late:
            ending = f"did not end in {START_SECONDS:.0f} s"
            said = late.stderr.decode(errors="replace") if isinstance(late.stderr, bytes) else late.stderr or ""
        if answer.exists():
            return read_answer(answer.read_text(encoding="utf-8"))
    last = [line for line in said.splitlines() if line.strip() and set(line.strip()) != {"-"}]
    text = f"{ranks} ranks started by {mpirun} {ending}{': ' + last[-1].strip()[:200] if last else ''}"
    return Examination([Finding("ranks", text, "problem", "start them by hand: dist-mp run -n 2 quickstart --dry-run")])


def read_answer(text: str) -> Examination:
    """An examination from its JSON."""
    values: dict[str, Any] = json.loads(text)
    return Examination(
        [Finding(**one) for one in values["findings"]],
        [RankFacts(**one) for one in values["ranks"]],
        [Link(**one) for one in values["links"]],
    )


def meeting_problem(world: World) -> Finding | None:
    """The finding where the ranks of the launcher do not see each other."""
    problem = mismatch(os.environ, world.size, world.mpi.get_vendor()[0])
    return Finding("ranks", problem, "problem", "launcher and library are not of one MPI") if problem else None


def _tensorflow() -> Finding:
    """TensorFlow in a process of its own: an import that crashes on this processor ends nothing else."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TENSORFLOW], capture_output=True, text=True, timeout=START_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding("TensorFlow", f"no answer in {START_SECONDS:.0f} s", "problem", "the file system may be slow")
    if done.returncode:
        last = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        return Finding("TensorFlow", last[-1][:200], "problem", "pip install 'dist-mp[cpu]', or 'dist-mp[gpu]'")
    version, *devices = done.stdout.strip().splitlines()[-1].split("|")
    return Finding("TensorFlow", f"{version}, devices {', '.join(devices)}")


def _scheduler(vendor: str) -> Finding:
    """Which scheduler is here, and whether Slurm's srun can start ranks of this MPI."""
    from dist_mp.launch.scheduler import find_scheduler

    job = next(
        (f" in job {os.environ[name]}" for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID") if name in os.environ), ""
    )
    try:
        scheduler = find_scheduler()
    except UserError:
        return Finding("scheduler", f"none found{job}")
    if scheduler.name != "slurm":
        return Finding("scheduler", f"{scheduler.name}{job}")
    listed = scheduler.ask(["srun", "--mpi=list"])
    if listed.returncode:
        return Finding(
            "scheduler",
            f"slurm{job}, but it does not answer: {' '.join(listed.stderr.split())[:120]}",
            "note",
            "its configuration or its daemon may be missing on this machine",
        )
    kinds = sorted({word for word in (listed.stdout + listed.stderr).split() if word.startswith("pmi")})
    wanted = "pmix" if vendor == "Open MPI" else "pmi2"
    text = f"slurm{job}, srun --mpi knows {', '.join(kinds) or 'nothing of MPI'}"
    if vendor and wanted not in kinds:
        return Finding("scheduler", text, "note", f"{vendor} needs {wanted}: submit with --launcher mpirun")
    return Finding("scheduler", text)
