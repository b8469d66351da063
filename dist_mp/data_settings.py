"""The settings of each kind of data set; part of the settings of a run, :mod:`dist_mp.config`."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from dist_mp.section import Section


class ShotWindows(Section):
    """How tokamak shots become training windows, and what counts as an alarm in time."""

    length: PositiveInt = Field(64, description="time steps of a training window (steps)")
    warning_steps: PositiveInt = Field(
        100, description="the target is positive in this many last steps of a disruptive shot (steps)"
    )
    deadline_steps: NonNegativeInt = Field(
        10, description="an alarm later than this before the disruption is too late (steps)"
    )
    ignore_steps: NonNegativeInt = Field(30, description="first steps of a shot that evaluation ignores (steps)")
    seed: NonNegativeInt = Field(7, description="seed of the split into training and held-out shots")
    validation_fraction: float = Field(0.25, gt=0.0, lt=1.0, description="share of shots held out")
    normaliser: Literal["mean_var", "var", "min_max", "averaged"] = Field(
        "mean_var",
        description="scale of the signals, fitted on training shots: var: median deviation within a shot; mean_var: "
        "and mean 0; min_max: range [0, 1]; averaged: mean_var, then a causal average",
    )
    average_steps: PositiveInt = Field(10, description="steps that the averaged normaliser looks back over (steps)")
    cut_steps: NonNegativeInt = Field(
        0, description="last steps of a training shot that are not trained on; an alarm there comes too late (steps)"
    )
    random_offsets: bool = Field(
        True,
        description="the first shots of an epoch begin at a random window, so that the rows do not reset together; "
        "what lies before it follows later in the epoch",
    )


class CampaignData(ShotWindows):
    """Generated disruption campaigns: tokamak shots with 0D signals and 1D profiles."""

    kind: Literal["campaign"] = "campaign"
    shots: PositiveInt = Field(320, description="shots in the campaign, all splits together")
    seed: NonNegativeInt = Field(
        7, description="seed of the generator and of the split; the same seed gives the same shots"
    )
    disruptive_fraction: float = Field(0.4, gt=0.0, lt=1.0, description="share of shots that disrupt")
    min_steps: PositiveInt = Field(200, description="shortest shot (time steps)")
    max_steps: PositiveInt = Field(600, description="longest shot (time steps)")
    profile_points: PositiveInt = Field(64, description="points of a 1D profile")

    @model_validator(mode="after")
    def _ordered(self) -> CampaignData:
        if self.min_steps > self.max_steps:
            raise ValueError(f"min_steps must not exceed max_steps, got {self.min_steps} > {self.max_steps}")
        return self


class ShotsData(ShotWindows):
    """Recorded tokamak shots that `dist-mp data prepare` has read; the defaults are those of FRNN at 1 ms a step."""

    kind: Literal["shots"] = "shots"
    path: str = Field("", description="folder of prepared shots")
    length: PositiveInt = Field(128, description="time steps of a training window (steps)")
    warning_steps: PositiveInt = Field(
        1024, description="the target is positive in this many last steps of a disruptive shot (steps)"
    )
    deadline_steps: NonNegativeInt = Field(
        30, description="an alarm later than this before the disruption is too late (steps)"
    )
    ignore_steps: NonNegativeInt = Field(100, description="first steps of a shot that evaluation ignores (steps)")
    cut_steps: NonNegativeInt = Field(
        30, description="last steps of a training shot that are not trained on; an alarm there comes too late (steps)"
    )
    train_list: str = Field(
        "", description="file that names the shots to train on, a number a line (empty: split by fractions)"
    )
    valid_list: str = Field("", description="file of held-out shots (empty: validation_fraction of the training shots)")
    test_list: str = Field("", description="file of test shots (empty: test_fraction of all shots)")
    test_fraction: float = Field(
        0.0, ge=0.0, lt=1.0, description="share of shots set aside for the test; only where there are no lists"
    )
    test_path: str = Field(
        "", description="folder of prepared shots of another machine, all of them test shots (empty: those of path)"
    )
    test_scale: Literal["own", "training"] = Field(
        "own",
        description="test_path: signals are scaled by the other machine's own shots (as FRNN) or by those trained on",
    )


class TextData(Section):
    """A word-level corpus in the format of the Penn Tree Bank: three text files, one sentence a line."""

    kind: Literal["text"] = "text"
    path: str = Field(
        "",
        description="folder with one file each that ends in train.txt, valid.txt and test.txt, or what "
        "`dist-mp data prepare` made of it",
    )
    length: PositiveInt = Field(35, description="words of a training window (steps of truncated backpropagation)")
    max_words: PositiveInt | None = Field(
        None, description="vocabulary limit; rarer words become <unk> (null: every word of the training file)"
    )
    limit_tokens: PositiveInt | None = Field(
        None, description="use only so many tokens of each file, for a quick try (null: all)"
    )


class LabelledData(Section):
    """Sequences or images with one class each, in buckets by length."""

    kind: Literal["labelled"] = "labelled"
    format: Literal["reviews", "series", "idx", "cifar", "arrays", "tones", "shapes"] = Field(
        "reviews",
        description="reviews: aclImdb, archive or folder; series: NAME_TRAIN.ts beside NAME_TEST.ts; idx: folder of "
        "MNIST or Fashion-MNIST; cifar: CIFAR-10, binary; arrays: .npz or folder of .npy as of Keras; tones: generated "
        "spectrograms; shapes: generated images",
    )
    path: str = Field("", description="file or folder; of series the file NAME_TRAIN.ts; of tones and shapes empty")
    samples: PositiveInt = Field(2000, description="tones, shapes: training samples, held-out ones among them")
    max_words: PositiveInt = Field(20_000, description="reviews, arrays of words: vocabulary limit")
    max_length: PositiveInt = Field(400, description="reviews, arrays of words: longest sequence, its end kept (steps)")
    validation_fraction: float = Field(0.1, gt=0.0, lt=1.0, description="share of training samples held out")


class PairsData(Section):
    """Pairs of sentences for translation: two parallel text files, or generated ones."""

    kind: Literal["pairs"] = "pairs"
    source: str = Field("", description="text file, a sentence a line (empty, and target too: generated pairs)")
    target: str = Field("", description="text file whose line n translates line n of the source")
    max_words: PositiveInt | None = Field(
        None, description="vocabulary limit of each side; rarer words become <unk> (null: every training word)"
    )
    max_length: PositiveInt = Field(
        30, description="longest sentence on either side; longer pairs are left out (steps)"
    )
    samples: PositiveInt = Field(5000, description="generated pairs, held-out ones among them")
    symbols: PositiveInt = Field(20, description="words of a generated language")
    validation_fraction: float = Field(0.1, gt=0.0, lt=1.0, description="share of pairs held out")


class ShapesData(Section):
    """Generated images of several objects each, with boxes, for a detector."""

    kind: Literal["shapes"] = "shapes"
    samples: int = Field(2500, ge=2, description="images, held-out ones among them")
    validation_fraction: float = Field(0.2, gt=0.0, lt=1.0, description="share of images held out")


class ModuleData(Section):
    """A data set from a Python module of your own, for any model."""

    kind: Literal["module"] = "module"
    factory: str = Field(
        "",
        description="FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION, called with all settings; it returns a "
        "dist_mp.data.base.Dataset, for example of dist_mp.data.stream",
    )


DataSection: TypeAlias = CampaignData | ShotsData | TextData | LabelledData | PairsData | ShapesData | ModuleData
"""Every kind of data; `kind` tells them apart."""
