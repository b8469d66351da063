"""Jobs on a real Slurm: they are followed, reach their time limit, lose a node, come back and finish by themselves."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dist_mp.launch.mpirun import find_mpirun
from tests.conftest import RunCli
from tests.harness.runner import child_environment
from tests.slurm.cluster import Cluster

SLOW = f"""
name: slow
precision: fp32
data: {{kind: module, factory: "{Path(__file__).with_name("slowly.py")}:slowly"}}
model: {{kind: disruption, layers: 1, units: 8, filters: 4, profile_dense: 8}}
optimizer: {{name: momentum, clip_norm: 0.5}}
train: {{batch_size: 4, epochs: 100, max_steps: 300, eval_every: 100, check_weights_every: 5}}
checkpoint: {{every_epochs: 0, every_steps: 10}}
"""
PATIENCE = 150.0
DIST_MP = (sys.executable, "-m", "dist_mp")

pytestmark = pytest.mark.timeout(420)


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "slow.yaml"
    path.write_text(SLOW)
    return path


class Job:
    """A job of these tests."""

    def __init__(self, cluster: Cluster, job_id: str, folder: Path) -> None:
        self.cluster, self.job_id, self.folder = cluster, job_id, folder

    def until(self, what: str, done: Callable[[], Any], seconds: float = PATIENCE) -> None:
        """Wait; a job that Slurm lets wait after a requeue (two minutes) is told that it may start soon.

        Not at once: a node takes no job whose credential it has just been told to forget.
        """
        end, before = time.monotonic() + seconds, ""
        while not done():
            reason = self.cluster.ask("squeue", "-h", "-j", self.job_id, "-o", "%r").strip()
            if reason == "BeginTime" != before:
                self.cluster.ask("scontrol", "update", f"jobid={self.job_id}", "starttime=now+2")
            before = reason
            gone = not reason and self.own_state() not in ("", "running", "ended 0")
            if gone or time.monotonic() > end:
                pytest.fail(f"not {what}\n{self.log()}\n{self.cluster.ask('squeue')}{self.cluster.logs()}")
            time.sleep(0.5)

    def log(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("job-*.log")))

    def own_state(self) -> str:
        path = self.folder / "job-state"
        return path.read_text().strip() if path.exists() else ""

    def limit(self, minutes: int) -> None:
        """Change the time limit, so that the test need not wait for the one it asked for."""
        self.cluster.ask("scontrol", "update", f"jobid={self.job_id}", f"timelimit={minutes}")

    def facts(self) -> str:
        return self.cluster.ask("scontrol", "-o", "show", "job", self.job_id)


@pytest.fixture
def submit(cluster: Cluster, settings: Path, tmp_path: Path) -> Callable[..., Job]:
    """Submit `settings` with some arguments. Not under guard: the job inherits the variables, and stays."""

    def run(*arguments: str) -> Job:
        done = subprocess.run(
            [*DIST_MP, "submit", "slow.yaml", *arguments],
            cwd=tmp_path,
            env=child_environment({}),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        job_id = re.match(r"job (\d+) submitted", done.stdout)
        folder = re.search(r"^folder +(.+)$", done.stdout, re.MULTILINE)
        assert job_id and folder, done.stdout
        return Job(cluster, job_id[1], Path(folder[1]))

    return run


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def steps(folder: Path) -> list[int]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [record["step"] for record in records if record["kind"] == "step"]


def elapsed(facts: str) -> int:
    """Seconds that a job has run, by scontrol."""
    hours, minutes, seconds = map(int, re.findall(r" RunTime=(\d+):(\d+):(\d+)", facts)[0])
    return 3600 * hours + 60 * minutes + seconds


def checkpointed(folder: Path) -> bool:
    return any((folder / "checkpoints").glob("step-*"))


def test_time_limit_and_a_node_that_goes_down(
    submit: Callable[..., Job], cluster: Cluster, tmp_path: Path, run_cli: RunCli
) -> None:
    """One job with srun reaches its time limit, one with mpirun loses a node: both end with the same weights."""
    limited = submit("--nodes=2", "--time=30", "--save-before=100")
    follower = subprocess.Popen(
        [*DIST_MP, "logs", "-f", limited.job_id],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=child_environment({}),
    )
    try:
        limited.until("saved once", lambda: checkpointed(limited.folder))
        limited.limit(elapsed(limited.facts()) // 60 + 2)
        limited.until("back in the queue", lambda: "Restarts=1" in limited.facts())
        assert limited.own_state() == "requeued"
        limited.limit(30)
        (tmp_path / "fast").touch()
        limited.until("finished", lambda: limited.own_state() == "ended 0")
        followed, _ = follower.communicate(timeout=60)
    finally:
        if follower.poll() is None:
            follower.kill()
            follower.wait()
    log = limited.log()
    assert followed == log
    assert re.search(r"SIGUSR1.*; the state is saved", log)
    assert "the time limit is near and the state is saved" in log and "DUE TO TIME LIMIT" not in log
    resumed = re.search(r"resumed +after step (\d+)", log)
    assert resumed and 0 < int(resumed[1]) < 300
    assert log.count("2 on 2 nodes") == 2
    assert steps(limited.folder) == list(range(300))

    (tmp_path / "fast").unlink()
    broken = submit("--nodes=2", "--launcher=mpirun", "--time=30")
    broken.until("saved once", lambda: checkpointed(broken.folder))
    cluster.fail_node("n2")
    broken.until("back in the queue", lambda: "JobState=PENDING" in broken.facts())
    shown = run_cli(["status", broken.job_id], cwd=tmp_path).stdout
    assert re.search(rf"^{broken.job_id} +slow +pending ", shown, re.MULTILINE)
    (tmp_path / "fast").touch()
    cluster.start_node("n2")
    cluster.ask("scontrol", "update", "nodename=n2", "state=resume")
    broken.until("finished", lambda: broken.own_state() == "ended 0")
    resumed = re.search(r"resumed +after step (\d+)", broken.log())
    assert resumed and 0 < int(resumed[1]) < 300, broken.log()
    assert steps(broken.folder)[-1] == 299
    assert summary(limited.folder)["weights"] == summary(broken.folder)["weights"]
    table = run_cli(["status"], cwd=tmp_path).stdout.splitlines()
    assert [line.split()[:3] for line in table[1:]] == [[j.job_id, "slow", "completed"] for j in (limited, broken)]


def test_sweep_of_two_runs_one_of_which_is_preempted_and_cancelled(
    submit: Callable[..., Job], cluster: Cluster, tmp_path: Path, run_cli: RunCli
) -> None:
    array = submit("--sweep=train.max_steps=3,100000", "--setup=export TOLD=yes")
    first, second = (array.folder / f"task-{number}" for number in (1, 2))
    array.until("one finished", lambda: (first / "job-state").exists() and "ended" in (first / "job-state").read_text())
    array.until("the other going", lambda: checkpointed(second))
    shown = run_cli(["status", array.job_id], cwd=tmp_path).stdout
    assert re.search(rf"^{array.job_id}_1 +slow +completed ", shown, re.MULTILINE), shown
    assert re.search(rf"^{array.job_id}_2 +slow +running ", shown, re.MULTILINE), shown
    urgent = cluster.ask("sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "-o", "/dev/null", "--wrap=true")
    assert urgent.startswith("Submitted")
    array.until("preempted", lambda: (second / "job-state").read_text() == "requeued\n")
    array.until("back", lambda: "resumed " in array.log())
    done = run_cli(["cancel", f"{array.job_id}_2"], cwd=tmp_path)
    assert (done.rc, done.stdout.split(";")[0]) == (0, f"job {array.job_id}_2 cancelled")
    array.until("out of the queue", lambda: not cluster.ask("squeue", "-h", "-j", array.job_id).strip())
    log = run_cli(["logs", f"{array.job_id}_2"], cwd=tmp_path).stdout
    assert len(re.findall(r"SIGTERM.*; the state is saved", log)) == 2 and "held-out auc" not in log
    assert "another job takes this one's place and the state is saved" in log
    assert ", start 2, " in log and ", start 3, " not in log
    state = run_cli(["status", f"{array.job_id}_2"], cwd=tmp_path).stdout
    assert re.search(rf"^{array.job_id}_2 +slow +cancelled ", state, re.MULTILINE), state
    assert summary(first)["applied_steps"] == 3
    assert not (second / "summary.json").exists()
    assert "held-out auc" in run_cli(["logs", f"{array.job_id}_1"], cwd=tmp_path).stdout


def test_what_cannot_run_is_said_before_it_is_queued(
    cluster: Cluster, settings: Path, tmp_path: Path, run_cli: RunCli
) -> None:
    done = run_cli(["submit", "slow.yaml", "--nodes=2", "train.global_batch=4"], cwd=tmp_path)
    assert done.rc == 2 and "4 x 2 ranks" in done.stderr
    done = run_cli(["submit", "slow.yaml", "--partition=gpu"], cwd=tmp_path)
    assert done.rc == 2 and done.stderr.startswith("error: sbatch: ") and "partition" in done.stderr
    assert not [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    done = run_cli(["submit", "slow.yaml", "--directive=--hold", "--parsable"], cwd=tmp_path)
    assert done.rc == 0, done.stderr
    job_id = done.stdout.strip()
    done = run_cli(["logs", job_id], cwd=tmp_path)
    assert done.rc == 2 and f"job {job_id} has no log yet (pending)" in done.stderr
    assert run_cli(["cancel", job_id], cwd=tmp_path).rc == 0
    assert "cancelled" in run_cli(["status", job_id], cwd=tmp_path).stdout


def test_ranks_that_do_not_meet_are_told(cluster: Cluster, settings: Path, tmp_path: Path, run_cli: RunCli) -> None:
    program = ["srun", "--mpi=none", "--nodes=2", "--ntasks=2", *DIST_MP]
    done = run_cli(["train", "slow.yaml"], program=program, cwd=tmp_path)
    said = [line for line in done.stderr.splitlines() if not line.startswith("srun:")]
    assert done.rc == 2 and len(said) == 1, done.stderr
    assert re.match(
        r"error: srun --mpi=none started 2 ranks, but .* sees 1: they do not meet; start them with srun", said[0]
    )
    assert not (tmp_path / "runs").exists()


def test_doctor_between_two_nodes(cluster: Cluster, tmp_path: Path, run_cli: RunCli) -> None:
    mpi = "pmix" if find_mpirun().vendor == "Open MPI" else "pmi2"
    program = ["srun", f"--mpi={mpi}", "--nodes=2", "--ntasks=2", *DIST_MP]
    done = run_cli(["doctor", "--json"], program=program, cwd=tmp_path, timeout=120)
    assert done.rc == 0, done.stdout + done.stderr
    texts = {one["topic"]: one["text"] for one in json.loads(done.stdout)["findings"]}
    assert texts["launcher"] == f"srun --mpi={mpi}: 2 ranks on n1 (1), n2 (1)"
    assert re.fullmatch(r"slurm in job \d+, srun --mpi knows .*pmi2.*", texts["scheduler"])
    assert "link between nodes" in texts or "link within a node" in texts
