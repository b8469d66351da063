"""The settings of a run: every field with its unit, default and limits.

A configuration is a YAML file that mirrors :class:`Config`; ``key=value`` on the command line reaches every field by
its dotted path (``optimizer.clip_norm=5``). Unknown keys are refused with the nearest valid one.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from dist_mp.data_settings import CampaignData as CampaignData
from dist_mp.data_settings import DataSection
from dist_mp.data_settings import LabelledData as LabelledData
from dist_mp.data_settings import ModuleData as ModuleData
from dist_mp.data_settings import PairsData as PairsData
from dist_mp.data_settings import ShapesData as ShapesData
from dist_mp.data_settings import ShotsData as ShotsData
from dist_mp.data_settings import ShotWindows as ShotWindows
from dist_mp.data_settings import TextData as TextData
from dist_mp.model_settings import ClassifierModel as ClassifierModel
from dist_mp.model_settings import ConvolutionalModel as ConvolutionalModel
from dist_mp.model_settings import DetectorModel as DetectorModel
from dist_mp.model_settings import DisruptionModel as DisruptionModel
from dist_mp.model_settings import GanModel as GanModel
from dist_mp.model_settings import LanguageModel as LanguageModel
from dist_mp.model_settings import ModelSection
from dist_mp.model_settings import PythonModel as PythonModel
from dist_mp.model_settings import TranslationModel as TranslationModel
from dist_mp.section import Rate as Rate
from dist_mp.section import Section as Section


class LossScaleConfig(Section):
    """Factor on the loss that keeps small 16-bit gradients from vanishing (Micikevicius et al. 2018, section 3.2)."""

    mode: Literal["auto", "dynamic", "constant"] = Field(
        "auto",
        description="dynamic adapts the scale; constant keeps `initial`; "
        "auto is dynamic in fp16 and constant 1 in bf16 and fp32",
    )
    initial: PositiveFloat = Field(
        32768.0, description="scale at the first step, or for good if constant (8, 128, 256, 512, ...)"
    )
    growth_interval: PositiveInt = Field(2000, description="clean steps in a row after which the scale doubles (steps)")
    factor: float = Field(
        2.0, gt=1.0, description="the scale is multiplied by it when it grows and divided by it on an overflow"
    )
    floor: PositiveFloat = Field(1.0, description="the scale never falls below this")
    cap: PositiveFloat = Field(2.0**24, description="the scale never rises above this")
    max_skips: PositiveInt = Field(50, description="the run ends after this many skipped steps in a row (steps)")

    @model_validator(mode="after")
    def _ordered(self) -> LossScaleConfig:
        if self.mode == "dynamic" and not self.floor <= self.initial <= self.cap:
            raise ValueError(
                f"initial must lie between floor and cap, got {self.floor} <= {self.initial} <= {self.cap}"
            )
        return self


class OptimizerConfig(Section):
    """The update of the FP32 master weights, by a Keras optimizer."""

    name: Literal["sgd", "momentum", "nesterov", "adam", "adamw", "rmsprop", "adagrad"] = Field(
        "sgd", description="update rule"
    )
    momentum: Rate | None = Field(None, description="for momentum, nesterov and rmsprop (null: 0.9, rmsprop 0)")
    beta_1: Rate = Field(0.9, description="adam, adamw: decay of the first moment")
    beta_2: Rate = Field(0.999, description="adam, adamw: decay of the second moment")
    rho: Rate = Field(0.9, description="rmsprop: decay of the mean square")
    epsilon: PositiveFloat = Field(1e-7, description="adam, adamw, rmsprop, adagrad: added to the denominator")
    weight_decay: NonNegativeFloat = Field(0.0, description="adamw: decoupled weight decay a step")
    l2: NonNegativeFloat = Field(
        0.0, description="gradient of l2 * sum(w^2), taken from the FP32 masters after unscaling"
    )
    clip_norm: NonNegativeFloat = Field(
        0.0, description="limit on the global norm of the averaged, unscaled gradient (0: none)"
    )


class ScheduleConfig(Section):
    """The learning rate as a pure function of step, epoch and number of workers (Svyatkovskiy et al. 2017)."""

    rule: Literal["damped", "linear", "sqrt", "constant"] = Field(
        "damped", description="damped: base * n / (1 + n / half_workers)"
    )
    base: PositiveFloat = Field(0.01, description="learning rate of one worker, lambda_0")
    half_workers: PositiveFloat = Field(
        100.0, description="n_0: number of workers at which damping has halved the linear rule"
    )
    normalize: bool = Field(
        False, description="divide by the rule's value at n = 1, so that one worker trains at exactly `base`"
    )
    decay: float = Field(1.0, gt=0.0, le=1.0, description="the rate is multiplied by this after each epoch")
    decay_after: NonNegativeInt = Field(0, description="epochs before the decay begins (epochs)")
    warmup_steps: NonNegativeInt = Field(
        0, description="steps over which the rate rises linearly from the one of a single worker (steps)"
    )
    cap: PositiveFloat | None = Field(None, description="the rate never exceeds this (null: no cap)")


class ExchangeConfig(Section):
    """How gradients are averaged over the ranks."""

    codec: str = Field(
        "auto",
        description="what a number is on the wire: auto (the precision's own type), fp32, fp16, bf16, fp8_e4m3, "
        "fp8_e5m2, dynamic_tree, dynamic_uniform, linear, static_tree, mantissa, one_bit",
    )
    block: NonNegativeInt = Field(
        256,
        description="numbers that share a scale in the 8-bit codecs; multiples of 64 are fast (0: all of a gradient)",
    )
    rounding: Literal["nearest", "stochastic"] = Field(
        "nearest",
        description="of the 8-bit codecs; stochastic: up or down at random, right in the mean (Gupta et al. 2015)",
    )
    error_feedback: bool = Field(
        False, description="add what the wire lost of a gradient to the next one (Seide et al. 2014); for one_bit"
    )
    algorithm: Literal["auto", "shared", "pieces", "native"] = Field(
        "auto",
        description="shared: shared memory within a node, pieces between nodes; "
        "pieces: Alltoall, FP32 sum in rank order, Allgather; native: MPI_Allreduce; auto: shared",
    )
    bucket_mib: Annotated[PositiveFloat | None, BeforeValidator(lambda v: None if v == "auto" else v)] = Field(
        8.0,
        description="gradients are exchanged in buckets of about this size, counted in FP32 (MiB); "
        "auto or null: a short sweep at the start, the smallest size within 5% of the fastest",
    )
    cuda_aware: Literal["auto", "require", "off"] = Field(
        "auto",
        description="hand GPU memory to MPI as it is; auto: if a probe says that the library can, else through pinned "
        "host memory with a warning; require: or end with an error; off: through pinned host memory",
    )
    timeout_seconds: NonNegativeFloat = Field(
        600.0, description="a rank that waits longer for others ends the job and names them; 0 waits forever (seconds)"
    )

    @model_validator(mode="after")
    def _repeatable(self) -> ExchangeConfig:
        if self.bucket_mib is None and self.rounding == "stochastic":
            raise ValueError(
                "bucket_mib auto needs rounding nearest, got stochastic, which goes by the places in the buckets: "
                "give their size (MiB), so that the run can be repeated"
            )
        return self


class TrainConfig(Section):
    """Length, batch and reporting of a run."""

    epochs: PositiveInt = Field(1, description="passes over the training data")
    batch_size: PositiveInt = Field(16, description="samples (rows) a worker and micro-batch")
    accumulation: PositiveInt = Field(
        1, description="micro-batches whose gradients are summed before one exchange and update"
    )
    global_batch: PositiveInt | None = Field(
        None,
        description="if given, must equal batch_size * workers * accumulation; notices a changed number of ranks",
    )
    virtual_workers: PositiveInt | None = Field(
        None,
        description="train with the arithmetic of so many workers in all, a multiple of the ranks, which then stand "
        "for several workers each: their batches, wires, order of sums and learning rate (null: a rank is a worker)",
    )
    max_steps: PositiveInt | None = Field(None, description="stop after so many steps in all (null: no limit)")
    eval_every: PositiveInt = Field(1, description="evaluate after each so many epochs (epochs)")
    eval_batch_size: PositiveInt | None = Field(None, description="rows a rank in evaluation (null: batch_size)")
    log_every: PositiveInt = Field(1, description="write a metrics record each so many steps (steps)")
    check_weights_every: NonNegativeInt = Field(
        100, description="compare the ranks' weight hashes each so many steps, 0 never (steps)"
    )
    metric: str = Field(
        "auto",
        description="held-out metric by which weights are better: loss, perplexity, auc, accuracy, ...; "
        "auto: auc where there is one, else loss",
    )
    patience: PositiveInt | None = Field(
        None, description="stop after so many evaluations in a row without a better metric (null: never)"
    )


class CheckpointConfig(Section):
    """When the state of a run is written down, and which of these checkpoints are kept."""

    every_epochs: NonNegativeInt = Field(1, description="after each so many epochs, 0 for never (epochs)")
    every_steps: NonNegativeInt = Field(0, description="also after each so many steps, 0 for never (steps)")
    every_minutes: NonNegativeFloat = Field(
        0.0, description="also when the last one is so old, at the end of a step; 0 for never (minutes)"
    )
    keep: PositiveInt = Field(2, description="newest checkpoints that are kept")
    keep_best: NonNegativeInt = Field(1, description="checkpoints with the best train.metric that are kept as well")
    folder: str | None = Field(
        None,
        description="checkpoints are written to a folder of the run's name in here, which the run folder then links "
        "to (null: into the run folder)",
    )


class WatchConfig(Section):
    """How a run can be watched, beside `metrics.jsonl`."""

    line_seconds: PositiveFloat = Field(
        10.0,
        description="a line of progress at most so long after the last one, in rank 0's log and, where there is no "
        "terminal, on standard error (seconds)",
    )
    line_steps: PositiveInt | None = Field(None, description="also a line after each so many steps (null: by time)")
    tensorboard: bool = Field(False, description="write TensorBoard event files into the run folder")
    prometheus: str = Field(
        "",
        description="file (.prom) with the newest values for the textfile collector of Prometheus's node exporter, "
        "or a folder that gets one named after the run (empty: none)",
    )


class EvaluationConfig(Section):
    """The evaluation at the end of a run, written to `evaluation.json`."""

    test: bool = Field(True, description="evaluate the test data too, where there are any")
    deadlines_ms: list[PositiveFloat] = Field(
        [30.0, 70.0, 200.0, 500.0, 1000.0],
        description="shots: T_min, how long before the disruption an alarm must come; an evaluation each (ms)",
    )
    threshold: Literal["youden", "false_alarms"] = Field(
        "youden",
        description="shots: how the threshold of alarms is chosen on held-out shots; youden: largest share of detected "
        "less share of false alarms; false_alarms: most detections that false_alarm_share allows",
    )
    false_alarm_share: float = Field(
        0.05, ge=0.0, le=1.0, description="shots: clean held-out shots that may raise an alarm, as a share"
    )
    calibration_bins: PositiveInt = Field(10, description="bins of probability for the calibration")


class Config(Section):
    """All settings of a run."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="the run folder starts with it")
    seed: NonNegativeInt = Field(1, description="seed of weights, dropout and data order")
    precision: Literal["auto", "fp16", "bf16", "fp32"] = Field(
        "auto", description="type of activations, gradients and working weights"
    )
    master_weights: bool = Field(
        True, description="keep FP32 masters; false updates the 16-bit weights themselves (ablation)"
    )
    threads: PositiveInt = Field(1, description="compute threads a rank")
    run_folder: str = Field("runs", description="run folders are made in here")
    timeline: bool = Field(
        False, description="write a Chrome trace of each rank's steps into the run folder, for Perfetto"
    )
    loss_scale: LossScaleConfig = Field(default_factory=LossScaleConfig)
    data: DataSection = Field(default_factory=CampaignData, discriminator="kind")
    model: ModelSection = Field(default_factory=DisruptionModel, discriminator="kind")
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = Field(default_factory=ScheduleConfig)
    exchange: ExchangeConfig = Field(default_factory=ExchangeConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    watch: WatchConfig = Field(default_factory=WatchConfig)

    @model_validator(mode="after")
    def _data_fits_model(self) -> Config:
        fitting = {
            "language": ["text", "module"],
            "disruption": ["campaign", "shots", "module"],
            "classifier": ["labelled", "module"],
            "convolutional": ["labelled", "module"],
            "translation": ["pairs", "module"],
            "detector": ["shapes"],
            "gan": ["labelled", "module"],
            "python": ["campaign", "shots", "text", "labelled", "module"],
        }[self.model.kind]
        if self.data.kind not in fitting:
            needs = " or ".join(fitting)
            raise ValueError(f"model.kind {self.model.kind} needs data.kind {needs}, got {self.data.kind}")
        return self
