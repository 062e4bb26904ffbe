"""The kernels of a step: KernelCall, Step, and the batch they work on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilecast import units
from tilecast.errors import InvalidInput, shown

PHASES = ("prefill", "decode")
LONGEST = 100_000_000  # tokens; nothing that anyone runs
MOST_PASSES = 32  # distinct passes of a chunked prefill that are evaluated


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel that a step launches `count` times. Its sizes are those of every launch, or arrays with one entry per step."""

    name: str
    phase: str
    kernel: Any
    count: int
    cache: str = "warm"  # what L2 holds of its operands when it starts
    measured_in: str = "sglang"  # the engine whose measurements of this kernel are asked, where several measured it
    beside: str | None = None  # the call that runs at the same time on another stream: only what it takes longer counts


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass, or `num_steps` of them that differ only in sizes."""

    phase: str
    calls: tuple[KernelCall, ...]
    num_steps: int = 1


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that are prefilled together and decoded in lock step; one that has all its tokens leaves."""

    input_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.input_tokens:
            raise InvalidInput("a batch needs at least one request")
        for name in ("input_tokens", "output_tokens"):
            object.__setattr__(self, name, tuple(units.whole(name, value, LONGEST) for value in getattr(self, name)))

    @classmethod
    def uniform(cls, batch: int, isl: int, osl: int) -> "Batch":
        batch, isl, osl = (units.whole(name, value, LONGEST) for name, value in (("batch", batch), ("isl", isl), ("osl", osl)))
        if batch > 1_000_000:
            raise InvalidInput(f"batch = {batch:,} is more requests than one static batch can hold")
        return cls((isl,) * batch, (osl,) * batch)

    @classmethod
    def of_pairs(cls, requests: object) -> "Batch":
        """From (input, output) tokens of each request."""
        pairs = [tuple(pair) if isinstance(pair, Iterable) else () for pair in requests] if isinstance(requests, Iterable) else [()]
        if any(len(pair) != 2 for pair in pairs):
            raise InvalidInput(f"requests = {shown(requests)} must be pairs of input and output tokens")
        return cls(tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs))

    @property
    def num_requests(self) -> int:
        return len(self.input_tokens)

    def on_rank(self, dp: int) -> "Batch":
        """The largest share of `dp` ranks that take requests in turn."""
        shares = [Batch(self.input_tokens[rank::dp], self.output_tokens[rank::dp]) for rank in range(min(dp, self.num_requests))]
        return max(shares, key=lambda share: sum(share.input_tokens) + sum(share.output_tokens))

    @property
    def num_decode_steps(self) -> int:
        """The first token comes from the prefill."""
        return max(self.output_tokens) - 1

    @property
    def longest_context(self) -> int:
        return max(asked + given for asked, given in zip(self.input_tokens, self.output_tokens, strict=True))


@dataclass(frozen=True, slots=True)
class Tokens:
    """What S steps of one phase work on: for each step, the query and context length of every request in it.

    Where attention is split by requests, these are the requests of the busiest rank, and `whole` says what all ranks have together.
    """

    phase: str
    q_lens: tuple[np.ndarray, ...]
    kv_lens: tuple[np.ndarray, ...]
    whole: "Tokens | None" = None

    @property
    def num_tokens(self) -> np.ndarray:
        return np.array([int(lengths.sum()) for lengths in self.q_lens])

    @property
    def num_requests(self) -> np.ndarray:
        return np.array([len(lengths) for lengths in self.q_lens])

    @property
    def is_uniform(self) -> bool:
        """All requests of a step are equal."""
        return all(map(_are_uniform, (self.q_lens, self.kv_lens)))

    @property
    def rows(self) -> dict[str, np.ndarray]:
        """Rows of an operation by what it goes by."""
        whole = self.whole or self
        return {
            "token": self.num_tokens, "request": self.num_requests, "every_token": whole.num_tokens, "every_request": whole.num_requests,
        }  # fmt: skip


def _are_uniform(lengths: tuple[np.ndarray, ...]) -> bool:
    """In every step all the same."""
    first = np.cumsum([0, *(len(each) for each in lengths[:-1])])
    joined = np.concatenate(lengths)
    return bool((np.minimum.reduceat(joined, first) == np.maximum.reduceat(joined, first)).all())


def prefill_tokens(batch: Batch, dp: int = 1) -> Tokens:
    lengths = (np.asarray(batch.input_tokens, dtype=np.int64),)
    return _of_busiest(Tokens("prefill", lengths, lengths), dp)


def chunked_prefill(batch: Batch, budget: int, dp: int = 1) -> tuple[Tokens, np.ndarray]:
    """Prompts in order, `budget` tokens to a pass, cut where they do not fit: the distinct passes and how often each runs."""
    passes: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    q_lens, kv_lens, room = list[int](), list[int](), budget
    for length in batch.input_tokens:
        done = 0
        while done < length:
            taken = min(room, length - done)
            done, room = done + taken, room - taken
            q_lens.append(taken)
            kv_lens.append(done)
            if not room:
                key = (tuple(q_lens), tuple(kv_lens))
                passes[key] = passes.get(key, 0) + 1
                q_lens, kv_lens, room = [], [], budget
    if q_lens:
        key = (tuple(q_lens), tuple(kv_lens))
        passes[key] = passes.get(key, 0) + 1
    kept = list(passes.items())
    if len(kept) > MOST_PASSES:  # they differ by where prompts are cut: a spread of them stands for all
        chosen = np.linspace(0, len(kept) - 1, MOST_PASSES).round().astype(int)
        total = sum(passes.values())
        kept = [(kept[place][0], kept[place][1]) for place in chosen]
        scale = total / sum(count for _, count in kept)
    else:
        scale = 1.0
    new, seen = (tuple(np.asarray(key[side], dtype=np.int64) for key, _ in kept) for side in (0, 1))
    return _of_busiest(Tokens("prefill", new, seen), dp), np.array([count * scale for _, count in kept], dtype=np.float64)


def decode_tokens(batch: Batch, steps: Sequence[int], dp: int = 1) -> Tokens:
    """Decode steps by number, the first is 0: a request sees its prompt, what it has said, and the token just fed in."""
    inputs, outputs = (np.asarray(values, dtype=np.int64) for values in (batch.input_tokens, batch.output_tokens))
    contexts = tuple(inputs[outputs - 1 > step] + 1 + step for step in steps)
    return _of_busiest(Tokens("decode", tuple(np.ones_like(context) for context in contexts), contexts), dp)


def _of_busiest(tokens: Tokens, dp: int) -> Tokens:
    """Requests are dealt to `dp` ranks in turn; all wait for the one with the most context."""
    if dp == 1:
        return tokens
    ranks = [int(np.argmax([each[rank::dp].sum() for rank in range(min(dp, len(each)))])) for each in tokens.kv_lens]
    q_lens, kv_lens = (
        tuple(each[rank::dp] for each, rank in zip(lengths, ranks, strict=True)) for lengths in (tokens.q_lens, tokens.kv_lens)
    )
    return Tokens(tokens.phase, q_lens, kv_lens, tokens)
