"""The laws that a sanity run checks on a loaded model, each a function that answers with a figure and what is wrong.

One that fails names the layer and the template where it first went wrong. This file runs where eulerstack cannot be
imported (checks.py), so it imports torch, transformers and the files beside it.
B batch, T tokens, V vocabulary.
"""

import math
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path

import torch
from steps import train_steps  # these two stand beside this file, on the path of checks.py
from subject import CHUNKS, LENGTH, Subject, load, own_memory

NOISE = 0.01  # share of the loss that dropout alone may take off
# Largest difference that counts as equal, in standard deviations of the compared values.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-3, torch.bfloat16: 0.3, torch.float16: 0.1}
Answer = tuple[str, str]  # what was measured; where and how it went wrong, "" if it did not


@dataclass(frozen=True)
class Check:
    """The answer to one law by its name."""

    name: str
    ok: bool
    figure: str
    detail: str = ""


def shapes_link(subject: Subject) -> Answer:
    """Every layer accepts what the one before gives, and the head gives [B, T, V]."""
    out = subject.hidden(subject.probe)
    want = (*subject.probe.shape, subject.model.config.vocab_size)
    return str(tuple(out.logits.shape)), "" if tuple(out.logits.shape) == want else f"the head: not {want}"


def loss_finite(subject: Subject) -> Answer:
    """The loss of one batch is a number; at the start it is near that of a uniform guess, ln V."""
    with torch.no_grad():
        loss = subject.loss().item()
    figure = f"{loss:.3f} (ln V = {math.log(subject.model.config.vocab_size):.3f})"
    if math.isfinite(loss):
        return figure, ""
    states = subject.hidden(subject.batch).hidden_states
    bad = (subject.place(n - 1) for n, h in enumerate(states) if not torch.isfinite(h).all())
    return figure, f"first in {next(bad, 'the head')}"


def gradients_finite(subject: Subject) -> Answer:
    """Every parameter gets a gradient, and it is finite."""
    model = subject.model.train()
    model.zero_grad(set_to_none=True)
    subject.loss().backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    model.eval()
    wrong = [f"no gradient: {subject.place_of(n)}" for n, g in grads.items() if g is None]
    wrong += [f"not finite: {subject.place_of(n)}" for n, g in grads.items() if g is not None and not _finite(g)]
    idle = sum(g is not None and not g.any() for g in grads.values())
    figure = f"{len(grads) - len(wrong)} of {len(grads)} tensors" + (f", {idle} all zero" if idle else "")
    return figure, "; ".join(wrong[:3])


def causal(subject: Subject) -> Answer:
    """What comes later changes nothing before it."""
    half = LENGTH // 2
    other = subject.probe.clone()
    other[:, half:] = (other[:, half:] + 1) % subject.model.config.vocab_size
    got, want = subject.hidden(other), subject.hidden(subject.probe)
    for out in (got, want):
        out.logits = out.logits[:, :half]
        out.hidden_states = tuple(h[:, :half] for h in out.hidden_states)
    return _apart(subject, got, want, TOLERANCE[want.logits.dtype] / 10)


def cached_decoding(subject: Subject) -> Answer:
    """Chunk by chunk and token by token through the cache equals one full forward."""
    want, cache, parts = subject.hidden(subject.probe), None, []
    for start, stop in CHUNKS:
        parts.append(subject.hidden(subject.probe[:, start:stop], cache, use_cache=True))
        cache = parts[-1].past_key_values
    got = parts[0]
    got.logits = torch.cat([p.logits for p in parts], 1)
    got.hidden_states = tuple(torch.cat(hs, 1) for hs in zip(*(p.hidden_states for p in parts), strict=True))
    return _apart(subject, got, want, TOLERANCE[want.logits.dtype])


def save_and_load(subject: Subject) -> Answer:
    """Saved and loaded again, every tensor and every logit is the same to the last bit."""
    want = subject.hidden(subject.probe)
    with tempfile.TemporaryDirectory() as folder:
        subject.model.save_pretrained(folder)
        again = own_memory(load(Path(folder), want.logits.device, subject.model.dtype))
    mine, theirs = subject.model.state_dict(), again.state_dict()
    differ = [n for n in mine | theirs if n not in mine or n not in theirs or not torch.equal(mine[n], theirs[n])]
    figure = f"{len(mine) - len(differ)} of {len(mine)} tensors"
    if differ:
        return figure, f"differs: {subject.place_of(differ[0])}"
    with torch.no_grad():
        got = again(input_ids=subject.probe, use_cache=False, output_hidden_states=True)
    return figure, _apart(subject, got, want, 0.0)[1]


def learns(subject: Subject) -> Answer:
    """The loss falls within the given steps: that of the first batch, since one batch is harder than another."""
    torch.manual_seed(subject.seed)
    batches = ({"input_ids": ids, "labels": ids} for ids in cycle(subject.batches))
    losses = train_steps(subject.model, batches, steps=subject.steps, lr=subject.lr)
    with torch.no_grad():
        losses.append(subject.loss().item())  # the model is still in train mode, as for the first one
    subject.losses[:] = losses
    figure = f"{losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses) - 1} steps"
    return figure, "" if _fell(losses) else _obstacle(subject)


def _fell(losses: list[float]) -> bool:
    """Whether all are finite, and the last one, again of the first batch, is below the first by more than noise."""
    return all(map(math.isfinite, losses)) and losses[-1] < losses[0] * (1 - NOISE)


def _obstacle(subject: Subject) -> str:
    """Where learning stops: a part that is not finite, or whose gradient does not point uphill.

    Each part alone is moved along its gradient g, forth and back by t; the loss must then differ by 2 t |g|^2. Errors
    spread from the head to the embedding, so the first part in that order is the one.
    """
    model = subject.model.eval()
    if bad := [n for n, p in model.named_parameters() if not _finite(p)]:
        return f"diverged: {subject.place_of(bad[0])} is not finite"
    model.zero_grad(set_to_none=True)
    subject.loss().backward()
    for place, parameters in subject.groups().items():
        moved = [p for p in parameters if p.grad is not None]
        slope = sum(p.grad.float().square().sum().item() for p in moved)
        if not slope:
            return f"no gradient reaches {place}"
        step = 0.01 * math.sqrt(sum(p.float().square().sum().item() for p in moved) / slope)
        if 2 * step * slope > 1e-4 and _rise(subject, moved, step) < step * slope:
            return f"the gradient of {place} does not point uphill"
    return "every gradient points uphill; the steps are too small or too large"


def _rise(subject: Subject, parameters: list[torch.nn.Parameter], step: float) -> float:
    """How much the loss grows over `step` times the gradient of these parameters, from behind them to before them."""
    losses = []
    with torch.no_grad():
        for way in (1, -2, 1):  # there, to the other side, and home
            for p in parameters:
                p.add_(p.grad, alpha=way * step)
            losses.append(subject.loss().item())
    return losses[0] - losses[1]


def _apart(subject: Subject, got, want, tolerance: float) -> Answer:
    """The largest gap of the logits in standard deviations, and the first part whose output is apart."""
    gap = _gap(got.logits, want.logits)
    figure = f"{gap:.0e} sd"
    if gap <= tolerance:
        return figure, ""
    pairs = enumerate(zip(got.hidden_states, want.hidden_states, strict=True))
    apart = (subject.place(n - 1) for n, (a, b) in pairs if not _gap(a, b) <= tolerance)
    return figure, f"first apart after {next(apart, 'the head')}"


def _gap(a: torch.Tensor, b: torch.Tensor) -> float:
    """In float32; NaN for NaN."""
    a, b = a.float(), b.float()
    return (a - b).abs().max().item() / (b.std().item() + 1e-12)


def _finite(x: torch.Tensor) -> bool:
    return bool(torch.isfinite(x).all())


LAWS: dict[str, Callable[[Subject], Answer]] = {
    "shapes link": shapes_link,
    "loss finite": loss_finite,
    "causal": causal,
    "cached decoding equals full forward": cached_decoding,
    "every gradient finite": gradients_finite,
    "save and load exact": save_and_load,
    "loss falls within {steps} steps": learns,
}


def verdict(subject: Subject) -> dict:
    """All laws in order; without logits, the first alone."""
    checks: list[Check] = []
    for name, law in LAWS.items():
        checks.append(_ask(name.format(steps=subject.steps), law, subject))
        if not checks[0].ok:
            break
    return report(checks, subject.losses)


def _ask(name: str, law: Callable[[Subject], Answer], subject: Subject) -> Check:
    try:
        figure, detail = law(subject)
    except Exception as error:  # code under test may raise anything, and every law has an answer
        figure, detail = "no answer", f"{subject.whereabouts}: {first_line(error)}"
    return Check(name, not detail, figure, detail)


def first_line(error: Exception) -> str:
    """The kind of an error, and what it says first."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def report(checks: list[Check], losses: list[float]) -> dict:
    """The verdict as JSON: PASS if every check is ok; `training` is None where it was not reached."""
    failed = [c for c in checks if not c.ok]
    return {
        "verdict": "FAIL" if failed else "PASS",
        "reason": "; ".join(f"{c.name}: {c.detail}" for c in failed),
        "checks": [asdict(c) for c in checks],
        "training": _training(losses) if losses else None,
    }


def _training(losses: list[float]) -> dict:
    first, last = (round(x, 4) if math.isfinite(x) else None for x in (losses[0], losses[-1]))
    return {
        "steps": len(losses) - 1,
        "initial_loss": first,
        "final_loss": last,
        "loss_decreased": _fell(losses),
    }
