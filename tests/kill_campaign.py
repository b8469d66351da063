"""Kills training runs at random moments, resumes each to its end, and compares the final weights.

    python -m tests.kill_campaign --kills 100 --terms 30

For each run a random rank of a small job gets SIGKILL, or the launcher gets SIGTERM, at a random moment between the
start of the ranks and their end; the job is then resumed until it ends. Counted are runs whose final weights and whose
losses, rates and scales are those of the undisturbed run to the bit, and processes that were left behind. `--seed`
chooses the moments, in steps. Status 1 if a single run differs. A run takes about half a minute on two idle cores.
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
data: {kind: text, path: corpus, length: 5}
model: {kind: language, layers: 1, units: 8, dropout: 0.1}
optimizer: {name: adam, clip_norm: 1.0}
train: {batch_size: 4, epochs: 8, check_weights_every: 0, patience: 100}
checkpoint: {every_steps: 2, keep: 3}
"""
WORDS = 480
RANKS = 2
MOST_STARTS = 3
LONGEST = 300.0
"""Seconds that a job may take."""


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


def steps_of(run: Path) -> int:
    """Steps that a run has written down so far."""
    try:
        return (run / "metrics.jsonl").read_bytes().count(b'"kind":"step"')
    except OSError:
        return 0


def disturb(moments: list[tuple[str, int]], rng: random.Random, folder: Path, number: int) -> tuple[Path, list[str]]:
    """One run that is disturbed several times, resumed each time, and ends at last.

    Args:
        moments: kill, term or stop (SIGSTOP of a rank, noticed after a while), and the step after which it comes within
            a moment; if negative, while the ranks start.
        rng: chooses ranks and moments.
        folder: holds `victim.yaml`, the run, and what it said.
        number: of the run.

    Returns:
        The run folder, and what became of each disturbance.
    """
    run, tag = folder / f"run-{number}", f"campaign-{os.getpid()}-{number}"
    became = []
    with open(folder / "output.log", "ab") as log:
        for kind, after in moments:
            more = ["exchange.timeout_seconds=15"] if kind == "stop" else []
            became.append(disturb_once(kind, after, rng, start(victim(run, *more), folder, tag, log), run, tag))
        for _ in range(MOST_STARTS):
            if not (run / "summary.json").exists():
                start(victim(run), folder, tag, log).wait(LONGEST)
    end = time.monotonic() + 5
    while (left := members(tag)) and time.monotonic() < end:
        time.sleep(0.1)
    if left:
        became.append(f"left behind {[p.pid for p in left]}")
        for survivor in left:
            survivor.kill()
    return run, became


def victim(run: Path, *more: str) -> list[str]:
    """What is started: a run in this folder, from its newest checkpoint."""
    return ["victim.yaml", "--into", str(run), *more]


def disturb_once(
    kind: str, after: int, rng: random.Random, process: subprocess.Popen[bytes], run: Path, tag: str
) -> str:
    """Disturb a job that was just started; returns what became of it."""
    begin, hit = time.monotonic(), False
    while process.poll() is None and not hit and time.monotonic() - begin < LONGEST:
        seen = ranks_of(tag) if after <= 0 or steps_of(run) >= after else []
        if len(seen) == RANKS:
            time.sleep(rng.uniform(0.0, 0.1 if after >= 0 else 8.0))
            if kind == "term":
                process.send_signal(signal.SIGTERM)
            else:
                rng.choice(seen).send_signal(signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
            hit = True
        time.sleep(0.005)
    status = process.wait(LONGEST)
    if not hit:
        return "too late" if status == 0 else f"UNEXPECTED status {status}"
    # 143: asked to end before there was a state to save; 0: it ended at that very moment.
    expected = {"kill": (0, 137), "term": (0, 75, 143), "stop": (1,)}[kind]
    return f"hit, {'' if status in expected else 'UNEXPECTED '}status {status}"


def undisturbed(folder: Path) -> tuple[Any, ...]:
    """Write settings and data into `folder`, run once without any disturbance, and return the result."""
    (folder / "victim.yaml").write_text(CONFIG)
    words = random.Random(3)
    (folder / "corpus").mkdir()
    for part, size in (("train", WORDS), ("valid", 60), ("test", 60)):
        text = " ".join(f"w{words.randrange(17)}" for _ in range(size))
        (folder / "corpus" / f"{part}.txt").write_text(text + "\n")
    whole = folder / "whole"
    status = start(["victim.yaml", "--into", str(whole)], folder, f"campaign-{os.getpid()}").wait(LONGEST)
    if status:
        raise SystemExit(f"the undisturbed run ended with status {status}")
    return result(whole)


def campaign(kills: int, terms: int, seed: int, folder: Path) -> Counter[str]:
    """Run the campaign in `folder`; returns how many runs ended how."""
    rng = random.Random(seed)
    wanted = undisturbed(folder)
    steps = len(wanted[1])
    counts: Counter[str] = Counter()
    for number, kind in enumerate(["kill"] * kills + ["term"] * terms):
        run, became = disturb([(kind, rng.randrange(-steps // 4, steps))], rng, folder, number)
        try:
            same = "equal" if result(run) == wanted else "DIFFERENT"
        except OSError as error:
            same = f"WITHOUT RESULT ({error.strerror})"
        outcome = f"{kind}: {', '.join(became)}: {same}"
        counts[outcome] += 1
        print(f"{number + 1} of {kills + terms}: {outcome}", flush=True)
        if same == "equal":
            shutil.rmtree(run)
    return counts


def failures(counts: Counter[str]) -> int:
    """How many runs differ, left a process behind, or ended with a status that they should not have."""
    return sum(
        n for what, n in counts.items() if not what.endswith(": equal") or "left" in what or "UNEXPECTED" in what
    )


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
