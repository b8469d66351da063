"""Everything that a rank trains with."""

from __future__ import annotations

from dataclasses import dataclass, field

from dist_mp.comm.world import World
from dist_mp.config import Config
from dist_mp.data.base import Dataset
from dist_mp.exchange.averager import Averager
from dist_mp.exchange.placement import Placement
from dist_mp.model.base import Task
from dist_mp.precision.loss_scale import LossScale
from dist_mp.precision.master import MasterWeights
from dist_mp.precision.policy import Precision
from dist_mp.train.evaluate import Evaluator
from dist_mp.train.step import TrainStep
from dist_mp.train.trace import StepTrace


@dataclass
class Parts:
    """What is put together by :mod:`dist_mp.train.assemble`."""

    world: World
    config: Config
    dataset: Dataset
    precision: Precision
    exchange: str
    """Codec, algorithm and buckets in words, for the header."""
    task: Task
    masters: MasterWeights
    loss_scale: LossScale
    allreduce: Averager
    step: TrainStep
    evaluator: Evaluator
    trace: StepTrace | None = None
    """Gets the phases of each step where the settings ask for a timeline."""
    placement: Placement = field(default_factory=lambda: Placement(None))
    """Where gradients are averaged."""

    @property
    def num_workers(self) -> int:
        """Workers of all ranks: the ranks themselves, or the virtual ones."""
        return self.config.train.virtual_workers or self.world.size

    @property
    def workers(self) -> int:
        """Workers that this rank stands for, 1 without virtual ones; they come in order of the ranks."""
        return self.num_workers // self.world.size

    @property
    def micros(self) -> int:
        """Micro-batches of this rank in a step, of one worker after the other."""
        return self.workers * self.config.train.accumulation

    @property
    def rows(self) -> int:
        """Rows of this rank in a global batch: those of all its micro-batches."""
        return self.config.train.batch_size * self.micros

    @property
    def global_rows(self) -> int:
        """Rows of a global batch."""
        return self.rows * self.world.size
