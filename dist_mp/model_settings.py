"""The settings of the models, one section a kind; part of :mod:`dist_mp.config`."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from dist_mp.section import Rate, Section


class LanguageModel(Section):
    """Word language model: embedding, stacked LSTM, softmax over the vocabulary."""

    kind: Literal["language"] = "language"
    layers: PositiveInt = Field(2, description="LSTM layers")
    units: PositiveInt = Field(
        200, description="LSTM cells a layer; without a projection the width of the embedding too"
    )
    projection: PositiveInt | None = Field(
        None, description="width of h, which is then a projection of the cells' output (null: none, h is units wide)"
    )
    dropout: Rate = Field(0.0, description="dropout on the input of each LSTM layer and on the output")
    recompute: bool = Field(
        False, description="compute gates again in the backward pass: less memory, about a third more time"
    )
    softmax_block: PositiveInt | None = Field(
        None, description="words whose logits exist at a time: less memory, one product more (null: all at once)"
    )
    softmax: Literal["full", "sampled"] = Field(
        "full", description="of the loss in training: over all words, or over the target and a sample of them"
    )
    softmax_samples: PositiveInt = Field(
        1024, description="words drawn a step and rank for the sampled softmax, more often the more frequent they are"
    )
    init_scale: PositiveFloat = Field(0.05, description="weights start uniform in [-init_scale, init_scale]")


class DisruptionModel(Section):
    """Disruption predictor: convolutions over 1D profiles, joined with 0D signals, stacked LSTM, one output a step."""

    kind: Literal["disruption"] = "disruption"
    layers: PositiveInt = Field(2, description="LSTM layers")
    units: PositiveInt = Field(64, description="LSTM cells a layer")
    filters: PositiveInt = Field(
        16, description="filters of the first profile convolution; halved at each of the next two"
    )
    profile_dense: PositiveInt = Field(
        32, description="width of the dense layers over the profiles (the last has a quarter of it)"
    )
    dropout: Rate = Field(0.0, description="dropout on the input of each LSTM layer and on the output")
    recompute: bool = Field(
        False, description="compute gates again in the backward pass: less memory, about a third more time"
    )
    target: Literal["hinge", "maxhinge", "binary", "ttd"] = Field("hinge", description="what the output is trained on")


class ClassifierModel(Section):
    """Sequence classifier: embedding or convolutions over time, stacked LSTM or GRU, softmax."""

    kind: Literal["classifier"] = "classifier"
    cell: Literal["lstm", "gru"] = Field("lstm", description="kind of the recurrent layers")
    layers: PositiveInt = Field(1, description="recurrent layers")
    units: PositiveInt = Field(64, description="cells a layer")
    embedding: PositiveInt = Field(64, description="width of the embedding, of words")
    convolutions: NonNegativeInt = Field(0, description="convolutions over time before the layers, of series")
    filters: PositiveInt = Field(32, description="filters of each of them")
    width: PositiveInt = Field(
        5, description="steps that each of them spans: up to its own, or around it if bidirectional (steps)"
    )
    stride: PositiveInt = Field(
        1, description="the first convolution keeps every so many-th step; only if bidirectional (steps)"
    )
    bidirectional: bool = Field(
        False, description="read whole sequences in both directions and classify the mean over their steps"
    )
    dropout: Rate = Field(0.0, description="dropout on the input of each layer and on the output")
    recompute: bool = Field(
        False, description="compute gates again in the backward pass: less memory, about a third more time"
    )

    @model_validator(mode="after")
    def _stride_needs_both(self) -> ClassifierModel:
        if self.stride > 1 and not (self.bidirectional and self.convolutions):
            raise ValueError(f"stride is {self.stride}, which needs bidirectional true and at least one convolution")
        return self


class TranslationModel(Section):
    """Encoder-decoder with attention: stacked LSTM on both sides, softmax over the words of the target."""

    kind: Literal["translation"] = "translation"
    layers: PositiveInt = Field(1, description="LSTM layers on each side")
    units: PositiveInt = Field(128, description="LSTM cells a layer, and the width of embeddings and attention")
    dropout: Rate = Field(0.0, description="dropout on the input of each LSTM layer and before the output")
    recompute: bool = Field(
        False, description="compute gates again in the backward pass: less memory, about a third more time"
    )


class ConvolutionalModel(Section):
    """Image classifier: blocks of two 3x3 convolutions and a pooling, two dense layers, softmax."""

    kind: Literal["convolutional"] = "convolutional"
    blocks: PositiveInt = Field(2, description="blocks; each halves the image and doubles the filters")
    filters: PositiveInt = Field(16, description="filters of the first block")
    dense: PositiveInt = Field(64, description="width of the hidden dense layer")
    dropout: Rate = Field(0.0, description="dropout after each block and before the output")


class DetectorModel(Section):
    """Single-shot detector of objects in small images: convolutions, default boxes on two maps."""

    kind: Literal["detector"] = "detector"
    filters: PositiveInt = Field(16, description="filters of the first block; doubled at each of the next two")


class GanModel(Section):
    """Generative adversarial network of small images, generator and discriminator trained in one step."""

    kind: Literal["gan"] = "gan"
    filters: PositiveInt = Field(16, description="filters at the full size of an image; doubled at each halving")
    noise: PositiveInt = Field(32, description="random numbers that an image is made of")


class PythonModel(Section):
    """The user's own Keras model; ``model: package.module:function`` says the same in short."""

    kind: Literal["python"] = "python"
    function: str = Field("", description="package.module:function; takes the shapes of the data, returns the model")
    target: Literal["hinge", "maxhinge", "binary", "ttd"] = Field(
        "hinge", description="campaign, shots: what the output is trained on"
    )


ModelSection: TypeAlias = (
    LanguageModel
    | DisruptionModel
    | ClassifierModel
    | ConvolutionalModel
    | TranslationModel
    | DetectorModel
    | GanModel
    | PythonModel
)
"""Every kind of model; `kind` tells them apart."""
