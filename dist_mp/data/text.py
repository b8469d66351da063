"""Word-level corpora in the format of the Penn Tree Bank files, as contiguous streams for stateful training.

A corpus is a folder with three text files, one sentence a line, words apart by white space; each line end becomes the
word ``<eos>`` (Zaremba, Sutskever and Vinyals 2014). The vocabulary is that of the training file. A large corpus is
encoded once (:mod:`dist_mp.data.corpus`) and then opened in no time, its words shared by the ranks of a node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_mp.config import TextData
from dist_mp.data.base import Batch, Dataset, DataSpec, Split
from dist_mp.data.corpus import is_corpus, open_corpus
from dist_mp.data.slots import Pieces, SlotPlan
from dist_mp.data.vocabulary import END_OF_SENTENCE, PARTS, Vocabulary, find_files
from dist_mp.errors import UserError

STRETCH_WINDOWS = 32
"""Windows after which the evaluation of a text begins from a state of zero again."""


def read_words(path: Path, limit: int | None = None) -> list[str]:
    """The first `limit` words of a UTF-8 file (None: all), with ``<eos>`` for each line end.

    Fewer than two words leave nothing to predict and are refused, as is anything that is not UTF-8 text.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # With a byte order mark the offset counts from behind it.
        offset = error.start + len(raw) - len(error.object)
        line = raw.count(b"\n", 0, offset) + 1
        raise UserError(f"{path}, line {line}: byte {offset} is not UTF-8; convert the file to UTF-8") from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UserError(f"{path}, line {line}: a zero byte; the file is not UTF-8 text")
    if text and not text.endswith("\n"):
        text += "\n"
    words = text.replace("\n", f" {END_OF_SENTENCE} ").split()
    if not words:
        raise UserError(f"{path}: holds no words; one sentence a line is expected")
    words = words[:limit]
    if len(words) < 2:
        raise UserError(
            f"{path}: a single word leaves nothing to predict; at least two are needed (data.limit_tokens: {limit})"
        )
    return words


class TextSplit(Split):
    """One text, cut into one contiguous stretch a row; every word but the first is predicted exactly once an epoch.

    Row g of G predicts words 1 + g * N // G to (g + 1) * N // G of N + 1, in windows of T. The state of a row is
    reset at the beginning of an epoch and carried from window to window. Rows differ by one word at most; what they
    lack in the last window has weight 0. The order is that of the text in every epoch.

    The sum of weights is N for any number of rows and ranks. The first words of each row are predicted without the
    past: an epoch depends a little on the number of rows.
    """

    def __init__(
        self, tokens: NDArray[np.int32], length: int, stretches: Sequence[tuple[int, int]] | None = None
    ) -> None:
        """Take the numbers of a text's words, at least two, and the window T.

        `stretches` (begin, end) are the inputs whose next words are predicted, None for the whole text; they are
        dealt to the rows as if they were one text, so that here and there a row goes on in another place.
        """
        self.tokens = tokens
        self._length = length
        kept = [(begin, end) for begin, end in stretches or [] if begin < end]
        if stretches is None:
            kept = [(0, len(tokens) - 1)]
        self._begins = np.array([begin for begin, _ in kept], np.int64)
        self._ends = np.array([end for _, end in kept], np.int64)
        self._offsets = np.concatenate([[0], np.cumsum(self._ends - self._begins)])

    @property
    def predictions(self) -> int:
        """N, words that are predicted in an epoch."""
        return int(self._offsets[-1])

    def remainder(self, epoch: int, global_rows: int, steps: int) -> TextSplit:
        """See :class:`Split`: of each row the words behind its first `steps` windows."""
        stretches = []
        for row in range(global_rows):
            begin = row * self.predictions // global_rows + steps * self._length
            end = (row + 1) * self.predictions // global_rows
            while begin < end:
                which = int(np.searchsorted(self._offsets, begin, side="right")) - 1
                until = min(end, int(self._offsets[which + 1]))
                shift = int(self._begins[which] - self._offsets[which])
                stretches.append((begin + shift, until + shift))
                begin = until
        return TextSplit(self.tokens, self._length, stretches)

    def _place(self, offset: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where in the text the inputs are that stand at these offsets of all stretches together."""
        if len(self._begins) == 1:
            return offset + self._begins[0]
        which = np.searchsorted(self._offsets, offset, side="right") - 1
        return offset + (self._begins - self._offsets[:-1])[which]

    def steps(self, epoch: int, global_rows: int) -> int:
        """Global batches in an epoch: the windows of the longest row."""
        longest = -(-self.predictions // global_rows)
        return -(-longest // self._length)

    def batches(self, epoch: int, global_rows: int, first_row: int, rows: int, start_step: int = 0) -> Iterator[Batch]:
        """See :class:`Split`. The inputs at padding are word 0."""
        if not 0 <= first_row <= first_row + rows <= global_rows:
            raise ValueError(f"rows {first_row} to {first_row + rows} are not within {global_rows}")
        row = np.arange(first_row, first_row + rows, dtype=np.int64)
        begin = row * self.predictions // global_rows
        end = (row + 1) * self.predictions // global_rows
        for step in range(start_step, self.steps(epoch, global_rows)):
            at = begin[:, None] + np.arange(step * self._length, (step + 1) * self._length)
            valid = at < end[:, None]
            at = self._place(np.where(valid, at, 0))
            yield Batch(
                inputs=np.where(valid, self.tokens[at], 0).astype(np.int32),
                targets=np.where(valid, self.tokens[at + 1], 0).astype(np.int32),
                weight=valid.astype(np.float32),
                reset=np.full(rows, step == 0),
            )


class StretchSplit(Split):
    """One text in stretches of a fixed length, dealt to slots: for evaluation, the same on any number of rows.

    Each stretch begins from a state of zero and is gone through window by window (:mod:`dist_mp.data.slots`). What is
    predicted of a word therefore depends on the text alone, and so does the perplexity.
    """

    def __init__(self, tokens: NDArray[np.int32], length: int, windows: int = STRETCH_WINDOWS) -> None:
        """Take the numbers of a text's words, at least two, the window T, and how many windows a stretch has."""
        self.tokens = tokens
        self._length, self.stretch = length, length * windows
        self._last_plan: tuple[int, SlotPlan] | None = None

    @property
    def predictions(self) -> int:
        """Words that are predicted."""
        return len(self.tokens) - 1

    def _plan(self, global_rows: int) -> SlotPlan:
        if self._last_plan is None or self._last_plan[0] != global_rows:
            begins = np.arange(0, self.predictions, self.stretch)
            lengths = np.minimum(self.stretch, self.predictions - begins)
            self._last_plan = global_rows, Pieces.whole(lengths).plan(self._length, global_rows)
        return self._last_plan[1]

    def steps(self, epoch: int, global_rows: int) -> int:
        """Global batches."""
        return self._plan(global_rows).steps

    def batches(self, epoch: int, global_rows: int, first_row: int, rows: int, start_step: int = 0) -> Iterator[Batch]:
        """See :class:`Split`. `Batch.sequence` numbers the stretches; the inputs at padding are word 0."""
        if not 0 <= first_row <= first_row + rows <= global_rows:
            raise ValueError(f"rows {first_row} to {first_row + rows} are not within {global_rows}")
        plan, mine = self._plan(global_rows), slice(first_row, first_row + rows)
        for step in range(start_step, plan.steps):
            sequence, position = plan.sequence[step, mine], plan.position[step, mine]
            begin = np.maximum(sequence, 0).astype(np.int64) * self.stretch + position
            valid = np.arange(self._length) < plan.valid[step, mine][:, None]
            at = np.where(valid, begin[:, None] + np.arange(self._length), 0)
            yield Batch(
                inputs=np.where(valid, self.tokens[at], 0).astype(np.int32),
                targets=np.where(valid, self.tokens[at + 1], 0).astype(np.int32),
                weight=valid.astype(np.float32),
                reset=plan.reset[step, mine].copy(),
                sequence=sequence.copy(),
                position=position.copy(),
            )


class TextDataset(Dataset):
    """A corpus with its vocabulary and its three splits."""

    train: TextSplit
    valid: StretchSplit
    test: StretchSplit

    def __init__(self, settings: TextData) -> None:
        """Read and encode the three files of `settings.path`, or map what was encoded before."""
        if not settings.path:
            raise UserError("data.path: is empty; name the folder that holds the train, valid and test texts")
        self._folder = Path(settings.path)
        tokens = self._prepared(settings) if is_corpus(self._folder) else self._encoded(settings)
        self.spec = DataSpec(length=settings.length, vocabulary=len(self.vocabulary))
        self.train = TextSplit(tokens["train"], settings.length)
        self.valid, self.test = (StretchSplit(tokens[part], settings.length) for part in ("valid", "test"))
        self._tokens = {part: len(tokens[part]) for part in PARTS}

    def _encoded(self, settings: TextData) -> dict[str, NDArray[np.int32]]:
        words = {part: read_words(path, settings.limit_tokens) for part, path in find_files(self._folder).items()}
        self.vocabulary = Vocabulary(words["train"], settings.max_words)
        return {part: self.vocabulary.encode(words[part]) for part in PARTS}

    def _prepared(self, settings: TextData) -> dict[str, NDArray[np.int32]]:
        corpus = open_corpus(self._folder)
        if settings.max_words not in (None, corpus.max_words):
            raise UserError(
                f"data.max_words: {settings.max_words}, but {self._folder} was prepared with {corpus.max_words}"
            )
        self.vocabulary = corpus.vocabulary
        if settings.limit_tokens == 1:
            raise UserError("data.limit_tokens: a single word leaves nothing to predict; at least two are needed")
        return {part: tokens[: settings.limit_tokens] for part, tokens in corpus.tokens.items()}

    def state(self) -> dict[str, Any]:
        """The vocabulary."""
        return {"words": list(self.vocabulary.words)}

    def describe(self) -> str:
        """One line for the run's header."""
        counts = " / ".join(f"{self._tokens[part]:,}" for part in PARTS)
        return f"{self._folder}: {counts} words (train / valid / test), vocabulary {len(self.vocabulary):,}"
