"""Models as a user writes them, for the tests of `model: package.module:function`."""

from __future__ import annotations

import keras


def sequence_classifier(spec):
    if spec.vocabulary:
        start = [keras.Input((None,), dtype="int32"), keras.layers.Embedding(spec.vocabulary, 8)]
    else:
        start = [keras.Input((None, spec.channels))]
    return keras.Sequential([*start, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(spec.classes)])


def next_word(spec):
    layers = [
        keras.layers.Embedding(spec.vocabulary, 8),
        keras.layers.Conv1D(8, 2, padding="causal"),
        keras.layers.Dense(spec.vocabulary),
    ]
    return keras.Sequential([keras.Input((None,), dtype="int32"), *layers])


def danger(spec):
    norm = keras.layers.LayerNormalization(dtype="float32")
    return keras.Sequential([keras.layers.Dense(8, activation="tanh"), norm, keras.layers.Dense(1)])


def normalised(spec):
    norm = keras.layers.BatchNormalization(dtype="float32")
    layers = [norm, keras.layers.GlobalAveragePooling1D(), keras.layers.Dropout(0.5), keras.layers.Dense(spec.classes)]
    return keras.Sequential([keras.Input((None, spec.channels)), *layers])


def no_model(spec):
    return spec


def wrong_shape(spec):
    return keras.Sequential([keras.layers.Dense(7)])
