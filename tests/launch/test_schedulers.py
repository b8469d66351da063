"""What the schedulers' commands answer, as recorded (Slurm) or as their manuals have it (PBS, LSF)."""

from __future__ import annotations

from pathlib import Path

import pytest

from dist_mp.errors import UserError
from dist_mp.launch.batch_systems import parse_bjobs, parse_qstat
from dist_mp.launch.scheduler import JobState, find_scheduler
from dist_mp.launch.slurm import parse_details, parse_table
from dist_mp.launch.submitted import SubmittedJob, find_job, make_job_folder, recorded, remember

DETAILS = (
    "JobId=2 JobName=slow UserId=root(0) JobState=FAILED Reason=NonZeroExitCode Dependency=(null) Requeue=1 Restarts=0 "
    "ExitCode=143:0 RunTime=00:00:34 TimeLimit=00:01:00 NodeList=n[1-2] NumNodes=2\n"
    "JobId=9 ArrayJobId=8 ArrayTaskId=2 JobName=slow JobState=PENDING Reason=BeginTime ExitCode=0:0 RunTime=00:00:00 "
    "TimeLimit=00:01:00 NodeList=(null) NumNodes=1\n"
)
QSTAT = """Job Id: 12.server
    Job_Name = wlm
    job_state = R
    exec_host = node1/0*4+node2/0*4
    Resource_List.walltime = 01:30:00
    resources_used.walltime = 00:10:00
    Variable_List = PBS_O_HOME=/home/ann,
\tPBS_O_LANG=C

Job Id: 13.server
    Job_Name = wlm
    job_state = F
    Exit_status = 3
    Resource_List.walltime = 01:30:00
"""


def test_slurm() -> None:
    assert parse_table("12|RUNNING|n[1-2]|1:02|1:00:00|None\n12_3|PENDING||0:00|1:00:00|Priority\n") == [
        JobState("12", "running", "n[1-2]", "1:02", "1:00:00"),
        JobState("12_3", "pending", "", "0:00", "1:00:00", "Priority"),
    ]
    # sacct: state with who cancelled it, exit status and signal
    assert parse_table("7|CANCELLED by 0|None assigned|00:00:00|01:00:00|0:0\n8|FAILED|n1|00:01:00|01:00:00|0:9\n") == [
        JobState("7", "cancelled by 0", "", "00:00:00", "01:00:00", "status 0"),
        JobState("8", "failed", "n1", "00:01:00", "01:00:00", "signal 9"),
    ]
    assert parse_details(DETAILS) == [
        JobState("2", "failed", "n[1-2]", "00:00:34", "00:01:00", "status 143"),
        JobState("8_2", "pending", "", "00:00:00", "00:01:00", "BeginTime"),
    ]
    assert [state.active for state in parse_details(DETAILS)] == [False, True]


def test_pbs_and_lsf() -> None:
    assert parse_qstat(QSTAT) == [
        JobState("12.server", "running", "node1+node2", "00:10:00", "01:30:00"),
        JobState("13.server", "failed", "", "", "01:30:00", "status 3"),
    ]
    assert parse_bjobs("12|0|RUN|4*node1|10 second(s)|-\n13|2|EXIT|-|0 second(s)|3\n") == [
        JobState("12", "running", "4*node1", "10 second(s)"),
        JobState("13[2]", "failed", "", "0 second(s)", reason="status 3"),
    ]


def test_no_scheduler_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="no scheduler here"):
        find_scheduler()
    with pytest.raises(UserError, match="must be auto, slurm, pbs, lsf"):
        find_scheduler("condor")
    with pytest.raises(UserError, match="no sbatch on PATH"):
        find_scheduler("slurm").submit("job.sh")


def test_answers_of_a_scheduler_are_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sbatch").write_text(
        '#!/bin/sh\necho "sbatch: error: invalid partition specified: gpu" >&2\n'
        'echo "sbatch: error: Batch job submission failed: Invalid partition name specified" >&2\nexit 1\n'
    )
    (tmp_path / "bsub").write_text("#!/bin/sh\n/bin/cat >/dev/null\necho 'Job <12> is submitted to queue <normal>.'\n")
    for tool in ("sbatch", "bsub"):
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "job.sh").write_text("#!/bin/bash\n")
    with pytest.raises(UserError) as caught:
        find_scheduler().submit("job.sh")
    assert str(caught.value) == (
        "sbatch: invalid partition specified: gpu; Batch job submission failed: Invalid partition name specified"
    )
    assert find_scheduler("lsf").submit(str(tmp_path / "job.sh")) == "12"


def submitted(job_id: str, folder: Path, tasks: int = 0, scheduler: str = "slurm") -> SubmittedJob:
    return SubmittedJob(job_id, scheduler, "wlm", str(folder), 2, tasks, "2026-01-01T00:00:00Z")  # type: ignore[arg-type]


def test_record(tmp_path: Path) -> None:
    assert recorded(tmp_path) == []
    first, second = make_job_folder(tmp_path, "wlm"), make_job_folder(tmp_path, "wlm")
    assert first != second
    single, array = submitted("12", first), submitted("13", second, tasks=2)
    for job in (single, array):
        remember(tmp_path, job)
    assert recorded(tmp_path) == [single, array]
    assert find_job(tmp_path, "12") == single
    assert find_job(tmp_path, "13_2") == array
    assert (single.task("12"), array.task("13"), array.task("13_2")) == (None, None, 2)
    for name in ("job-13_1.log", "job-13_2.log", "job-13_10.log"):
        (second / name).write_text(name)
    assert [path.name for path in array.logs()] == ["job-13_1.log", "job-13_2.log", "job-13_10.log"]
    assert [path.name for path in array.logs(2)] == ["job-13_2.log"]
    with pytest.raises(UserError, match="no job of this id"):
        find_job(tmp_path, "14")
    (tmp_path / "jobs.jsonl").write_text('{"job_id": 3}\n')
    with pytest.raises(UserError, match=r"jobs.jsonl:1: "):
        recorded(tmp_path)


def test_a_pbs_job_that_came_back_has_its_new_id(tmp_path: Path) -> None:
    job = submitted("12.server", tmp_path, scheduler="pbs")
    remember(tmp_path, job)
    assert job.current_id() == "12.server"
    (tmp_path / "job-starts").write_text("2026-01-01T00:00:00Z 12.server n1\n2026-01-01T01:00:00Z 15.server n2\n")
    assert job.current_id() == "15.server"
    assert find_job(tmp_path, "15.server") == find_job(tmp_path, "12.server") == job
