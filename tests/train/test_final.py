"""evaluation.json is the same file on any number of ranks, for every kind of data."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.data.markov import write_corpus
from tests.train.runs import alone, one_thread, settings


def write_arrays(path: Path, classes: int) -> None:
    rng = np.random.default_rng(classes)
    arrays = {}
    for part, count in (("train", 60), ("test", 23)):
        labels = np.arange(count) % classes
        arrays[f"x_{part}"] = rng.normal(size=(count, 7, 3)) + labels[:, None, None]
        arrays[f"y_{part}"] = labels
    np.savez(path, **arrays)


@pytest.mark.mpi(ranks=[3, 4], timeout=240)
def test_any_number_of_ranks_gives_the_same_file(ranks: int, tmp_path: Path) -> None:
    """Seven rows a rank: never a divisor of what there is. Rank-dependent shares by construction."""
    from dist_mp.comm.world import World
    from dist_mp.config import Config
    from dist_mp.data.open import open_dataset
    from dist_mp.train.assemble import assemble
    from dist_mp.train.final import final_evaluation

    one_thread()
    with World.open() as world:
        folder = Path(world.broadcast(str(tmp_path)))
        if world.rank == 0:
            write_corpus(folder, 400)
            for classes in (2, 3):
                write_arrays(folder / f"{classes}.npz", classes)
        world.barrier()
        base = settings(train={"batch_size": 7}).model_dump()
        classifier = {"kind": "classifier", "layers": 1, "units": 6, "dropout": 0.0}
        cases = {
            "shots": {"model": base["model"] | {"target": "binary"}},
            "text": {
                "data": {"kind": "text", "path": str(folder), "length": 3},
                "model": {"kind": "language", "layers": 1, "units": 6, "dropout": 0.1},
            },
        } | {
            f"{n} classes": {
                "data": {"kind": "labelled", "format": "arrays", "path": str(folder / f"{n}.npz")},
                "model": classifier,
            }
            for n in (2, 3)
        }
        for name, changes in cases.items():
            config = Config.model_validate(base | changes)
            files, numbers = [], []
            for where in (world, alone(world)):
                parts = assemble(where, config, open_dataset(config))
                parts.evaluator.run()
                evaluation, main = final_evaluation(parts, "0")
                parts.allreduce.close()
                files.append(evaluation.model_dump_json(indent=1))
                numbers.append(main)
            assert files[0] == files[1], name
            assert json.dumps(numbers[0]) == json.dumps(numbers[1]), name
            found = json.loads(files[0])["splits"]
            if name == "shots":
                assert found.keys() == {"valid"}
                assert len(found["valid"]["shots"]) == 6
                assert {"detected", "false_alarms", "warning_ms", "threshold"} == numbers[0].keys()
                assert sum(found["valid"]["step_calibration"]["count"]) > 100
            else:
                assert found.keys() == {"valid", "test"}
                assert numbers[0]["test_loss"] == found["test"]["loss"]
                assert math.isfinite(numbers[0]["test_loss"])
            if name == "text":
                assert found["test"]["perplexity"] == pytest.approx(math.exp(found["test"]["loss"]))
            if "classes" in name:
                assert sum(map(sum, found["test"]["confusion"])) == found["test"]["samples"] == 23
                assert numbers[0]["test_accuracy"] == found["test"]["accuracy"]
