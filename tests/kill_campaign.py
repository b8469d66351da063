"""Kills training runs at random moments, resumes each to its end, and compares the final weights.

    python -m tests.kill_campaign --kills 100 --terms 30

For each kill the ranks of a small job get SIGKILL (one random rank) or the launcher gets SIGTERM, at a random moment
between the start of the ranks and their end; the job is then resumed until it ends. Counted are runs whose final
weights and losses are those of the undisturbed run to the bit, and processes that were left behind. `--seed` makes the
moments reproducible as far as the machine's speed is. Status 1 if a single run differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from tests.harness.guard import TAG, members
from tests.harness.runner import child_environment

CONFIG = """
name: victim
precision: fp16
loss_scale: {mode: dynamic, initial: 1048576.0, growth_interval: 5}
data: {kind: campaign, shots: 16, min_steps: 40, max_steps: 90, profile_points: 24, length: 16, warning_steps: 20,
       deadline_steps: 3, ignore_steps: 2}
model: {kind: disruption, layers: 1, units: 6, filters: 4, profile_dense: 4, dropout: 0.1}
optimizer: {name: adam, clip_norm: 1.0}
train: {batch_size: 4, epochs: 12, check_weights_every: 0, patience: 100}
checkpoint: {every_steps: 2, keep: 3}
"""
RANKS = 2
MOST_STARTS = 6


def start(arguments: list[str], folder: Path, tag: str, errors: Any = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start ``dist-mp run`` in a session of its own; all of its processes carry the tag."""
    environment = child_environment({"OMPI_MCA_mpi_yield_when_idle": "1", TAG: tag})
    command = [sys.executable, "-m", "dist_mp", "run", "-n", str(RANKS), *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
        start_new_session=True,
    )  # fmt: skip


def ranks_of(tag: str) -> list[psutil.Process]:
    """The processes of a job's ranks."""
    found = []
    for process in members(tag):
        try:
            if "OMPI_COMM_WORLD_RANK" in process.environ() or "PMI_RANK" in process.environ():
                found.append(process)
        except psutil.Error:
            continue
    return found


def result(run: Path) -> tuple[Any, ...]:
    """Final weights, and the losses, rates and scales of the steps that count."""
    steps: dict[int, tuple[Any, ...]] = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["kind"] == "start":
            steps = {step: values for step, values in steps.items() if step < record["step"]}
        if record["kind"] == "step":
            steps[record["step"]] = (record["loss"], record["learning_rate"], record["loss_scale"], record["applied"])
    return json.loads((run / "summary.json").read_text())["weights"], sorted(steps.items())


def disturb(kind: str, delay: float, rng: random.Random, folder: Path, number: int) -> tuple[Path, str]:
    """One run with one disturbance, resumed until it ends; returns its folder and what became of the disturbance."""
    run, tag = folder / f"run-{number}", f"campaign-{os.getpid()}-{number}"
    log = open(folder / "output.log", "ab")  # noqa: SIM115 - the jobs write to it
    process = start(["victim.yaml", "--into", str(run)], folder, tag, log)
    begin = time.monotonic()
    hit = "too late"
    while process.poll() is None and time.monotonic() - begin < 200:
        seen = ranks_of(tag) if time.monotonic() - begin >= delay else []
        if len(seen) == RANKS:
            if kind == "kill":
                rng.choice(seen).send_signal(signal.SIGKILL)
            else:
                process.send_signal(signal.SIGTERM)
            hit = "hit"
            break
        time.sleep(0.02)
    status = process.wait(200)
    wanted = (0,) if hit == "too late" else (0, 137) if kind == "kill" else (0, 75, 143)
    if status not in wanted:
        hit = f"status {status}"
    for _ in range(MOST_STARTS):
        if (run / "summary.json").exists():
            break
        process = start(["victim.yaml", "--into", str(run)], folder, tag, log)
        process.wait(300)
    log.close()
    end = time.monotonic() + 5
    while (left := members(tag)) and time.monotonic() < end:
        time.sleep(0.1)
    if left:
        hit = f"left behind {[p.pid for p in left]}"
        for survivor in left:
            survivor.kill()
    return run, hit if hit != "hit" else f"hit, status {status}"


def campaign(kills: int, terms: int, seed: int, folder: Path) -> Counter[str]:
    """Run the campaign in `folder`; returns how many runs ended how."""
    rng = random.Random(seed)
    (folder / "victim.yaml").write_text(CONFIG)
    begin = time.monotonic()
    whole = folder / "whole"
    status = start(["victim.yaml", "--into", str(whole)], folder, f"campaign-{os.getpid()}").wait(300)
    if status:
        raise SystemExit(f"the undisturbed run ended with status {status}")
    seconds, wanted = time.monotonic() - begin, result(whole)
    counts: Counter[str] = Counter()
    for number, kind in enumerate(["kill"] * kills + ["term"] * terms):
        run, hit = disturb(kind, rng.uniform(0.3 * seconds, seconds), rng, folder, number)
        try:
            same = "equal" if result(run) == wanted else "DIFFERENT"
        except OSError as error:
            same = f"WITHOUT RESULT ({error.strerror})"
        outcome = f"{kind}: {hit}: {same}"
        counts[outcome] += 1
        print(f"{number + 1} of {kills + terms}: {outcome}", flush=True)
        if same == "equal":
            shutil.rmtree(run)
    return counts


def failures(counts: Counter[str]) -> int:
    """How many runs differ, left a process behind, or ended with a status that they should not have."""
    return sum(n for what, n in counts.items() if not what.endswith(": equal") or "left" in what or ": status" in what)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="runs with SIGKILL of a random rank")
    parser.add_argument("--terms", type=int, default=30, help="runs with SIGTERM of the launcher")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dist-mp-kills-") as folder:
        counts = campaign(arguments.kills, arguments.terms, arguments.seed, Path(folder))
    for outcome, number in sorted(counts.items()):
        print(f"{number:4} x {outcome}")
    sys.exit(1 if failures(counts) else 0)


if __name__ == "__main__":
    main()
