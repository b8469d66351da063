"""Run folders as a run would leave them, made from numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dist_mp import settings
from dist_mp.config import Config
from dist_mp.train.records import CheckRecord, EpochRecord, RanksRecord, Record, StartRecord, StepRecord, SummaryRecord

BEGIN = 1_790_000_000.0
"""The moment at which made runs start (s since 1970)."""


def start(**changes: Any) -> StartRecord:
    """A start record of 2 ranks, with some fields changed."""
    fields: dict[str, Any] = {
        "time": BEGIN, "step": 0, "expected_steps": 100, "epochs": 2, "ranks": 2, "hosts": ["node01", "node02"],
        "process": 1, "command": ["python", "-m", "dist_mp", "train", "quickstart"], "folder": "/home/someone/work",
        "run": {
            "model": "disruption, 57,393 weights", "data": "campaign: 240 shots", "ranks": "2 on 2 nodes",
            "precision": "fp16, FP32 masters (as configured)", "exchange": "fp16 on the wire, shared, 1 bucket",
        },
        "software": {"dist_mp": "0.1.0", "Python": "3.12.4"}, "hardware": {"processor": "A processor", "cores": "64"},
        "variables": {"OMP_NUM_THREADS": "1"},
    }  # fmt: skip
    return StartRecord(**(fields | changes))


def step(number: int, **changes: Any) -> StepRecord:
    """The record of a step of 0.1 s whose loss falls from 1 and depends on the number."""
    fields: dict[str, Any] = {
        "time": BEGIN + 1 + 0.1 * number, "step": number, "epoch": 0, "loss": 0.1 + 0.9 / (1 + number / 20),
        "learning_rate": 0.004, "loss_scale": 32768.0, "applied": True, "gradient_norm": 1.0 / (1 + number / 50),
        "seconds": 0.1, "samples_per_second": 320.0, "steps_per_second": 20480.0, "share_compute": 0.7,
        "share_exchange": 0.15, "share_wait": 0.1, "share_input": 0.05, "rank_compute_seconds": [0.07, 0.07],
        "sent_bytes": 114_912,
    }  # fmt: skip
    return StepRecord(**(fields | changes))


def ranks(at: int, compute: Sequence[float], **changes: Any) -> RanksRecord:
    """A record of ranks with these seconds of compute; the others wait for the slowest."""
    slowest = max(compute)
    fields: dict[str, Any] = {
        "time": BEGIN + 1 + 0.1 * at, "step": at, "steps": 10, "compute": list(compute),
        "exchange": [0.015] * len(compute), "wait": [0.01 + slowest - own for own in compute],
        "input": [0.005] * len(compute),
    }  # fmt: skip
    return RanksRecord(**(fields | changes))


def epoch(number: int, after: int, **metrics: float) -> EpochRecord:
    """The record of an epoch that ended after so many steps."""
    loss = 0.1 + 0.9 / (1 + after / 20)
    return EpochRecord(
        time=BEGIN + 1 + 0.1 * after, epoch=number, steps=after, train_loss=loss, seconds=5.0, evaluation_seconds=0.5,
        metrics={"loss": loss * 1.1, "auc": 1 - loss / 4} | metrics,
    )  # fmt: skip


def summary(steps: int, **changes: Any) -> SummaryRecord:
    """The end of a run of so many steps."""
    fields: dict[str, Any] = {
        "time": BEGIN + 2 + 0.1 * steps, "metrics": {"loss": 0.11, "auc": 0.99}, "applied_steps": steps,
        "skipped_steps": 0, "loss_scale": 32768.0, "sent_bytes_per_step": 114_912.0, "gradient_numbers": 57_393,
        "samples_per_second": 318.0, "seconds": 2 + 0.1 * steps, "weights": "852ed1f8e1f53708", "run_folder": "runs/x",
    }  # fmt: skip
    return SummaryRecord(**(fields | changes))


def write(folder: Path, records: Sequence[Record], config: dict[str, Any] | None = None) -> Path:
    """A run folder with these records and settings."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(settings.dump(Config.model_validate(config or {})), encoding="utf-8")
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(record.model_dump_json() + "\n" for record in records)
    return folder


def complete(folder: Path, steps: int = 100, seed: int = 0, config: dict[str, Any] | None = None) -> Path:
    """A run of two epochs that has ended, with noise, a skipped step and a slow rank."""
    noise = np.random.default_rng(seed).normal(0, 0.05, steps)
    half = max(steps // 2, 1)
    records: list[Record] = [start(expected_steps=steps)]
    for number in range(steps):
        scale = 32768.0 if number < half else 16384.0
        skipped = number == half
        rate = 0.004 * 0.9 ** (number // half)
        clean = step(number).loss
        records.append(
            step(
                number, epoch=number // half, loss=clean * math.exp(noise[number]), applied=not skipped,
                loss_scale=scale, learning_rate=rate,
                gradient_norm=math.nan if skipped else 0.5 * math.exp(noise[-number]),
                share_compute=0.7 + noise[number] / 5, share_wait=0.1 - noise[number] / 5,
                samples_per_second=320.0 + 40 * noise[number],
            )
        )  # fmt: skip
        if (number + 1) % half == 0 and number + 1 <= 2 * half:
            records += [ranks(number + 1, [0.07, 0.11]), epoch(number // half, number + 1)]
    records += [CheckRecord(step=steps, weights="852ed1f8e1f53708"), summary(steps, skipped_steps=1)]
    return write(folder, records, config)


def append_text(folder: Path, text: str) -> None:
    """Append to the records as they stand."""
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(text)


def lines(folder: Path) -> list[dict[str, Any]]:
    """The records of a run."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
