"""A short training run: AdamW over a few batches, and whether the loss went down."""

import math
from collections.abc import Iterator

import torch


def train_steps(
    model: torch.nn.Module,
    batches: Iterator[dict[str, torch.Tensor]],
    *,
    steps: int,
    lr: float,
    amp: bool = False,
    grad_clip: float = 1.0,
) -> list[float]:
    """Train with AdamW for `steps` batches of `input_ids` and `labels`; the loss before each step.

    Stops after the first loss that is not finite. `amp` computes in bfloat16 on a CUDA device.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
    device = next(model.parameters()).device
    losses = []
    model.train()
    for _, batch in zip(range(steps), batches, strict=False):
        ids, labels = (batch[key].to(device) for key in ("input_ids", "labels"))
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=amp and device.type == "cuda"):
            loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            break
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        optimizer.step()
    return losses


def decreased(losses: list[float]) -> bool:
    """Whether training went down: every loss finite, and the last three on average below the first."""
    tail = losses[-3:]
    finite = len(losses) > 1 and all(map(math.isfinite, losses))
    return finite and sum(tail) / len(tail) < losses[0]
