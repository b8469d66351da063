"""Job scripts: recorded ones, templates of a site, and what a script does with signals, by running it in bash.

``python tests/launch/test_script.py`` writes the records in ``tests/launch/scripts`` anew.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dist_mp.errors import EXIT_STOPPED, UserError
from dist_mp.launch.request import JobRequest
from dist_mp.launch.script import render

SCRIPTS = Path(__file__).parent / "scripts"


def job(**changes: Any) -> JobRequest:
    folder = "/home/ann/runs/wlm-20260101-120000"
    words = ["run", "-n", "8"] if changes.get("launcher") == "mpirun" else ["train"]
    made = JobRequest(
        scheduler="slurm",
        name="wlm",
        title="wlm on 8 rank(s)",
        directory="/home/ann/language models",
        folder=folder,
        command=["/home/ann/env/bin/python", "-m", "dist_mp", *words, f"{folder}/job.yaml"],
        nodes=2,
        ntasks_per_node=4,
        seconds=5400,
    )
    return replace(made, **changes)


FULL = {
    "cpus_per_task": 8,
    "gpus_per_node": 4,
    "seconds": 2 * 86400,
    "warning_seconds": 600,
    "partition": "gpu",
    "account": "phys-7",
    "qos": "long",
    "constraint": "a100|h100",
    "setup": ["module load openmpi/5.0", "export NCCL_DEBUG=WARN"],
    "environment": {"PMIX_MCA_psec": "native"},
    "tasks": [["schedule.base=0.1", "name=it's"], ["schedule.base=0.2", "name=it's"]],
    "at_once": 1,
    "max_requeues": 7,
}
CASES: dict[str, JobRequest] = {
    "slurm-srun": job(mpi="pmix"),
    "slurm-mpirun": job(launcher="mpirun"),
    "slurm-full": job(mpi="pmi2", directives=["--mem=0", "--exclusive"], **FULL),
    "pbs": job(scheduler="pbs", launcher="mpirun"),
    "pbs-full": job(scheduler="pbs", launcher="mpirun", directives=["-m ae"], **FULL),
    "lsf": job(scheduler="lsf", launcher="mpirun"),
    "lsf-full": job(scheduler="lsf", launcher="mpirun", directives=["-x"], **FULL),
}


@pytest.mark.parametrize("name", CASES)
def test_script_is_the_recorded_one(name: str) -> None:
    CASES[name].check()
    script = render(CASES[name])
    assert script == (SCRIPTS / f"{name}.sh").read_text()
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_site_changes_a_block_and_keeps_the_rest(tmp_path: Path) -> None:
    (tmp_path / "slurm.sh.j2").write_text(
        '{% extends "dist_mp/slurm.sh.j2" %}\n{% block setup %}\nmodule load site-mpi\n{{ super() }}{% endblock %}\n'
    )
    ours = render(job(setup=["export A=1"]))
    theirs = render(job(setup=["export A=1"]), tmp_path)
    assert theirs == ours.replace("export A=1\n", "module load site-mpi\nexport A=1\n")
    assert render(job(scheduler="pbs", launcher="mpirun"), tmp_path) == render(job(scheduler="pbs", launcher="mpirun"))


def test_a_site_changes_all_schedulers_at_once(tmp_path: Path) -> None:
    (tmp_path / "job.sh.j2").write_text(
        '{% extends "dist_mp/job.sh.j2" %}\n{% block setup %}\nmodule load everywhere\n{% endblock %}\n'
    )
    for scheduler in ("slurm", "pbs", "lsf"):
        script = render(job(scheduler=scheduler, launcher="mpirun"), tmp_path)
        assert "\nmodule load everywhere\n" in script and "directives" not in script
    assert "#SBATCH --requeue\n" in render(job(), tmp_path)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% block %}", "slurm.sh.j2:1: "),
        ("\n{{ job.colour }}", "slurm.sh.j2:2: "),
        ("{% extends 'nothing.j2' %}", "asks for nothing.j2, which does not exist"),
    ],
    ids=["syntax", "unknown", "missing"],
)
def test_a_mistake_in_a_template_has_its_place(template: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "slurm.sh.j2").write_text(template)
    with pytest.raises(UserError) as caught:
        render(job(), tmp_path)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(UserError, match="no such folder"):
        render(job(), tmp_path / "nowhere")


RANKS = """
import signal, sys, time
asked = []
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, lambda number, frame: asked.append(number))
print("arguments", *sys.argv[1:], flush=True)
print("up", flush=True)
end = time.monotonic() + LIFE
while not asked and time.monotonic() < end:
    time.sleep(0.05)
time.sleep(0.3)  # saving
print("saved", *asked, flush=True)
sys.exit(int(STATUS))
"""


def run_script(
    tmp_path: Path,
    numbers: Sequence[int],
    *,
    scheduler: str = "slurm",
    status: int = EXIT_STOPPED,
    life: float = 20.0,
    facts: str = "JobState=RUNNING PreemptTime=None",
    environ: dict[str, str] | None = None,
    **changes: Any,
) -> tuple[int, str, list[str]]:
    """Run a script in bash; returns its status, its log, and what it asked the scheduler for.

    The ranks end with `status` when they get a signal, or after `life` seconds. The script gets the signals `numbers`.
    `facts` is what ``scontrol show job`` answers.
    """
    tools, folder = tmp_path / "tools", tmp_path / "job"
    tools.mkdir(exist_ok=True)
    folder.mkdir(exist_ok=True)
    (tmp_path / "ranks.py").write_text(RANKS.replace("STATUS", str(status)).replace("LIFE", str(life)))
    for tool in ("scontrol", "qsub"):
        (tools / tool).write_text(
            f'#!/bin/bash\nif [ "$1" = show ]; then echo "{facts}"; else echo "{tool} $*" >>{tmp_path}/asked; fi\n'
        )
        (tools / tool).chmod(0o755)
    made = job(
        scheduler=scheduler,
        launcher="mpirun",
        directory=str(tmp_path),
        folder=str(folder),
        command=[sys.executable, str(tmp_path / "ranks.py")],
        **changes,
    )
    Path(made.script).write_text(render(made))
    ids = {"SLURM_JOB_ID": "12", "PBS_JOBID": "12.host", "LSB_JOBID": "12"}
    environment = {**os.environ, **ids, "PATH": f"{tools}:{os.environ['PATH']}", **(environ or {})}

    def log() -> str:
        return "".join(path.read_text() for path in [tmp_path / "out", *sorted(folder.rglob("job.log"))])

    def up() -> int:
        return log().count("up\n")

    with open(tmp_path / "out", "ab") as out:
        process = subprocess.Popen(
            ["bash", made.script], stdout=out, stderr=out, env=environment, start_new_session=True
        )
        try:
            begun, end = up(), time.monotonic() + 20
            while numbers and up() == begun:
                assert time.monotonic() < end and process.poll() is None, log()
                time.sleep(0.05)
            for number in numbers:
                process.send_signal(number)
                time.sleep(0.1)
            process.wait(30)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    asked = (tmp_path / "asked").read_text().splitlines() if (tmp_path / "asked").exists() else []
    return process.returncode, log(), asked


def test_signal_before_the_time_limit_brings_the_job_back(tmp_path: Path) -> None:
    """The signal goes on, the script waits for the ranks to save, and asks for the job to come back; twice at most."""
    for start in (1, 2):
        status, log, asked = run_script(tmp_path, [signal.SIGUSR1], max_requeues=2)
        assert status == EXIT_STOPPED and asked == ["scontrol requeue 12"] * start
        assert log.count(f"saved {int(signal.SIGUSR1)}\n") == start
        assert (tmp_path / "job" / "job-state").read_text() == "requeued\n"
        assert f"job 12, start {start}, " in log
    status, log, asked = run_script(tmp_path, [signal.SIGUSR1], max_requeues=2)
    assert status == EXIT_STOPPED and len(asked) == 2 and "after 2 requeues the job stays out" in log
    assert (tmp_path / "job" / "job-state").read_text() == f"ended {EXIT_STOPPED}\n"
    assert f"arguments --into {tmp_path}/job\n" in log


@pytest.mark.parametrize(
    ("numbers", "status"),
    [
        ([signal.SIGTERM], EXIT_STOPPED),
        ([signal.SIGUSR1, signal.SIGTERM], EXIT_STOPPED),
        ([signal.SIGUSR1], 1),
        ([signal.SIGUSR1], 0),
        ([], 3),
    ],
    ids=["cancelled", "warned and cancelled", "failed", "finished", "alone"],
)
def test_otherwise_the_job_stays_out(numbers: list[int], status: int, tmp_path: Path) -> None:
    ended, log, asked = run_script(tmp_path, numbers, status=status, life=20.0 if numbers else 0.0)
    assert (ended, asked) == (status, []), log
    assert (tmp_path / "job" / "job-state").read_text() == f"ended {status}\n"


@pytest.mark.parametrize(
    ("facts", "back"),
    [
        ("JobState=RUNNING PreemptTime=2026-11-30T10:16:19", True),
        ("JobState=CANCELLED PreemptTime=2026-11-30T10:16:19", False),
        ("JobState=RUNNING PreemptTime=None", False),
    ],
    ids=["preempted", "then cancelled", "signalled by hand"],
)
@pytest.mark.parametrize("numbers", [[signal.SIGTERM], []], ids=["script and ranks", "ranks"])
def test_a_preempted_job_comes_back(numbers: list[int], facts: str, back: bool, tmp_path: Path) -> None:
    status, log, asked = run_script(tmp_path, numbers, facts=facts, life=20.0 if numbers else 0.0)
    assert (status, asked) == (EXIT_STOPPED, ["scontrol requeue 12"] if back else []), log
    assert ("another job takes this one's place and the state is saved: job 12 goes back" in log) == back


def test_a_rank_that_was_not_ready_for_the_signal_is_no_failure(tmp_path: Path) -> None:
    status, log, asked = run_script(tmp_path, [signal.SIGUSR1], status=128 + signal.SIGUSR1)
    assert (status, asked) == (138, ["scontrol requeue 12"]), log


def test_pbs_and_lsf_set_a_timer(tmp_path: Path) -> None:
    """Two seconds before a limit of four; PBS submits itself again, LSF goes by the status."""
    times = {"seconds": 4, "warning_seconds": 2}
    status, log, asked = run_script(tmp_path, [], scheduler="pbs", **times)
    assert (status, asked) == (0, [f"qsub {tmp_path}/job/job.sh"]), log
    status, log, asked = run_script(tmp_path, [], scheduler="lsf", **times)
    assert (status, len(asked)) == (EXIT_STOPPED, 1), log
    assert log.count(f"saved {int(signal.SIGUSR1)}\n") == 2
    status, log, _ = run_script(tmp_path, [signal.SIGTERM], scheduler="lsf", seconds=60, warning_seconds=2)
    assert status == 143, log  # EXIT_STOPPED would bring it back


def test_a_run_of_a_sweep_has_its_settings_and_folder(tmp_path: Path) -> None:
    tasks = [["schedule.base=0.1"], ["schedule.base=0.2", "name=it's $HOME"]]
    status, log, asked = run_script(
        tmp_path, [signal.SIGUSR1], tasks=tasks, environ={"SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "2"}
    )
    assert (status, asked) == (EXIT_STOPPED, ["scontrol requeue 12_2"])
    assert f"arguments schedule.base=0.2 name=it's $HOME --into {tmp_path}/job/task-2\n" in log
    assert (tmp_path / "job" / "task-2" / "job-state").read_text() == "requeued\n"
    status, log, _ = run_script(tmp_path, [], tasks=tasks, environ={"SLURM_ARRAY_TASK_ID": "9"})
    assert status == 2 and "no task '9'" in log


if __name__ == "__main__":
    SCRIPTS.mkdir(exist_ok=True)
    for name, case in CASES.items():
        (SCRIPTS / f"{name}.sh").write_text(render(case))
