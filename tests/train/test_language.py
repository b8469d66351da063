"""The word language model learns in every precision: held-out perplexity falls each epoch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.data.markov import write_corpus
from tests.train.runs import one_thread, settings, train


@pytest.mark.mpi(ranks=[2], timeout=150)
def test_perplexity_falls_each_epoch(tmp_path: Path) -> None:
    from dist_mp.comm.world import World
    from dist_mp.config import Config

    one_thread()
    with World.open() as world:
        if world.rank == 0:
            write_corpus(tmp_path, 400)
        world.comm.Barrier()
        last = {}
        for precision in ("fp16", "bf16", "fp32"):
            base = settings(precision=precision, optimizer={"name": "momentum", "clip_norm": 1.0}).model_dump()
            config = Config.model_validate(
                base
                | {
                    "data": {"kind": "text", "path": str(tmp_path), "length": 10},
                    "model": {"kind": "language", "layers": 1, "units": 24, "dropout": 0.1},
                    "schedule": {"base": 0.5, "rule": "constant"},
                    "train": {"batch_size": 4, "epochs": 4, "check_weights_every": 20},
                }
            )
            path = tmp_path / f"{precision}.jsonl"
            _, summary = train(world, config, records=path if world.rank == 0 else None)
            last[precision] = summary.metrics["perplexity"]
            if world.rank == 0:
                lines = [json.loads(line) for line in path.read_text().splitlines()]
                curve = [line["metrics"]["perplexity"] for line in lines if line["kind"] == "epoch"]
                assert len(curve) == 4
                assert all(np.diff(curve) < 0), (precision, curve)
                # 32 words: the chain itself is far more predictable than equal chances.
                assert curve[-1] < 20
        assert last["fp16"] == pytest.approx(last["fp32"], rel=0.05)
        assert last["bf16"] == pytest.approx(last["fp32"], rel=0.05)
