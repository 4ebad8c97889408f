"""Short training of the real model, in this process: does it link, is it finite, does it learn?

The stages check exported directories in a process of their own (`checks.py`); these four functions are for notebooks
and tests. They build the modeling code that ships, never a stand-in.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from eulerstack.compiler.runtime import runtime_config
from eulerstack.errors import DataError, SanityError
from eulerstack.export.build import build
from eulerstack.ir.normalizer import normalize_to_ir
from eulerstack.ir.shrink import shrink
from eulerstack.ir.types import IR
from eulerstack.training.steps import decreased, train_steps

SEE = "docs/tutorials/06_sanity_training.md"


@dataclass(frozen=True)
class SanityResult:
    """The losses of a short training run, one before each step, in nats per token."""

    losses: tuple[float, ...]

    @property
    def steps(self) -> int:
        return len(self.losses)

    @property
    def initial_loss(self) -> float:
        return self.losses[0]

    @property
    def final_loss(self) -> float:
        return self.losses[-1]

    @property
    def loss_decreased(self) -> bool:
        """The last three losses are finite and on average below the first."""
        return decreased(list(self.losses))

    @property
    def passed(self) -> bool:
        return self.loss_decreased

    def summary(self) -> str:
        return "\n".join(
            (
                f"Sanity training: {'PASS' if self.passed else 'FAIL'}",
                f"  Steps: {self.steps}",
                f"  Initial loss: {self.initial_loss:.4f}",
                f"  Final loss: {self.final_loss:.4f}",
                f"  Loss decreased: {self.loss_decreased}",
            )
        )


def build_sanity_model(
    vocab_size: int, d_model: int, n_heads: int, n_layers: int, max_seq_len: int, ir: IR | None = None
) -> torch.nn.Module:
    """A small float32 model on the CPU: the topology of `ir` shrunk to these sizes, or a Llama of them.

    With `ir`, its kinds of layers, schedule and ratios stay; `n_layers` is then the fewest layers wanted, since each
    kind of layer occurs at least once. Raises CompatibilityError when the sizes do not go together.
    """
    if ir is None:
        small = normalize_to_ir(_llama(vocab_size, d_model, n_heads, n_layers, max_seq_len))
    else:
        small = shrink(
            ir, vocab_size=vocab_size, d_model=d_model, n_heads=n_heads, n_layers=n_layers, max_seq_len=max_seq_len
        )
    return build_model_from_ir(small, "cpu", torch.float32)


def build_model_from_ir(ir: IR, device: str | torch.device, dtype: torch.dtype) -> torch.nn.Module:
    """The model of `ir` at its full size, with fresh weights for the seed of its `training_hints`.

    Raises CompileError for what is not built yet.
    """
    payload = runtime_config(ir)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(ir.training_hints.seed)
        with torch.device(device):
            return build(payload, dtype)


def run_sanity_training(
    model: torch.nn.Module,
    data: Any,
    batch_size: int = 16,
    max_steps: int = 50,
    lr: float = 1e-3,
    seed: int = 42,
    device: str = "cpu",
) -> SanityResult:
    """Train for `max_steps` batches of `data` in the model's own precision.

    `data` is token ids [N, T], or anything with a length whose items are [T] or `{"input_ids": [T]}`, such as
    TokenizedDataset. It is shuffled by `seed` and read again from the start when it ends.

    Raises DataError for no data, sequences of several lengths, or an id that the vocabulary does not hold.
    """
    return _run(model, data, batch_size, max_steps, lr, seed, device, amp=False)


def run_e2e_training(
    model: torch.nn.Module,
    dataset: Any,
    batch_size: int = 2,
    lr: float = 1e-4,
    max_steps: int = 20,
    device: str | None = None,
    use_amp: bool = True,
    seed: int = 42,
) -> SanityResult:
    """The same at full size: on `device` (the first CUDA device, else the CPU), in bfloat16 there with `use_amp`."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return _run(model, dataset, batch_size, max_steps, lr, seed, device, amp=use_amp)


def _run(model, data, batch_size, max_steps, lr, seed, device, *, amp) -> SanityResult:
    if max_steps < 1 or batch_size < 1:
        raise SanityError.at(
            "run_sanity_training", "max_steps and batch_size are at least 1", "ask for one step or more", SEE
        )
    if not len(data):
        raise _unusable("there is not one sequence to train on", "use more text or a shorter length")
    model = model.to(device)
    torch.manual_seed(seed)
    batches = _batches(data, batch_size, seed, model.config.vocab_size)
    return SanityResult(tuple(train_steps(model, batches, steps=max_steps, lr=lr, amp=amp)))


def _batches(data: Sequence, batch_size: int, seed: int, vocab_size: int) -> Iterator[dict[str, torch.Tensor]]:
    """Batches without end, each epoch in an order of its own."""
    order = torch.Generator().manual_seed(seed)
    while True:
        rows = torch.randperm(len(data), generator=order).tolist()
        for start in range(0, len(rows), batch_size):
            ids = _batch([data[i] for i in rows[start : start + batch_size]], vocab_size)
            yield {"input_ids": ids, "labels": ids}


def _batch(items: list, vocab_size: int) -> torch.Tensor:
    """Token ids [B, T] of `items`; DataError for what no model can read."""
    rows = [_row(item["input_ids"] if isinstance(item, Mapping) else item) for item in items]
    lengths = sorted({tuple(row.shape) for row in rows})
    if len(lengths) > 1 or len(lengths[0]) != 1 or lengths[0][0] < 2:
        what = f"these are not sequences of one length, of two tokens or more: their shapes are {lengths[:3]}"
        raise _unusable(what, "cut the text into windows, as tokenize_jsonl does")
    ids = torch.stack(rows)
    wrong = ids[(ids < 0) | (ids >= vocab_size)]
    if wrong.numel():
        what = f"token id {wrong[0].item()} with a vocabulary of {vocab_size}"
        raise _unusable(what, "tokenize with the tokenizer of this model")
    return ids


def _row(ids: Any) -> torch.Tensor:
    row = ids if isinstance(ids, torch.Tensor) else torch.from_numpy(np.array(ids))
    if row.is_floating_point() or row.dtype == torch.bool:
        raise _unusable(f"token ids are integers, not {row.dtype}", "give token ids")
    return row.long()


def _unusable(what: str, fix: str) -> DataError:
    return DataError.at("dataset", what, fix, SEE)


def _llama(vocab_size: int, d_model: int, n_heads: int, n_layers: int, max_seq_len: int) -> dict:
    return {
        "schema_version": 1,
        "model": {
            "name": "sanity",
            "d_model": d_model,
            "vocab_size": vocab_size,
            "max_seq_len": max_seq_len,
            "n_heads": n_heads,
            "dtype": "float32",
        },
        "tokenizer_contract": {"type": "hf", "pretrained": "gpt2"},
        "embedding": {"type": "learned", "positional": "rope"},
        "layer_templates": {"block": {"mixer": {"type": "attention"}, "ffn": {"type": "gated_mlp"}}},
        "layer_schedule": [{"template": "block", "repeat": n_layers}],
        "head": {"type": "causal_lm"},
    }
