"""The laws that a sanity run checks on a loaded model, each a function that answers by name with its figure.

One that fails names the layer and the template where it first went wrong. This file runs where eulerstack cannot be
imported (checks.py), so it imports torch, transformers and `steps.py` beside it.
Shapes: B batch, T tokens, V vocabulary.
"""

import math
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path

import torch
from steps import decreased, train_steps  # beside this file, on the path of checks.py

# Largest difference that counts as equal, in standard deviations of the compared values.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-3, torch.bfloat16: 0.3, torch.float16: 0.1}
CHUNKS = ((0, 9), (9, 10), (10, 11), (11, 18), (18, 26))
LENGTH = CHUNKS[-1][1]


@dataclass(frozen=True)
class Check:
    """The answer of one law: `figure` is what was measured, `detail` where it went wrong."""

    name: str
    ok: bool
    figure: str
    detail: str = ""


@dataclass(frozen=True)
class Subject:
    """A loaded model, and what to feed it: batches [B, T] of token ids, trained on in turn."""

    model: torch.nn.Module
    batches: tuple[torch.Tensor, ...]
    steps: int
    lr: float
    seed: int

    @property
    def batch(self) -> torch.Tensor:
        return self.batches[0]

    @property
    def probe(self) -> torch.Tensor:
        return self.batch[:2, :LENGTH]

    def place(self, layer: int) -> str:
        """A layer by number and template; the embedding is -1."""
        pattern = self.model.config.block_pattern
        return f"layer {layer} (template {pattern[layer]})" if layer >= 0 else "embedding"

    def place_of(self, parameter: str) -> str:
        """A parameter by name, with its layer and template."""
        numbers = [int(part) for part in parameter.split(".") if part.isdigit()]
        return f"{self.place(numbers[0])}: {parameter}" if ".layers." in parameter else parameter

    def hidden(self, ids: torch.Tensor, cache=None, *, use_cache: bool = False):
        """One forward pass without gradients, with every layer's output."""
        with torch.no_grad():
            return self.model(input_ids=ids, past_key_values=cache, use_cache=use_cache, output_hidden_states=True)


def _spread(x: torch.Tensor) -> float:
    return x.float().std().item() + 1e-12


def _first_apart(subject: Subject, got, want, tolerance: float) -> tuple[float, str]:
    """The largest gap of the logits in standard deviations, and the first layer whose output is apart."""
    gap = (got.logits.float() - want.logits.float()).abs().max().item() / _spread(want.logits)
    if gap <= tolerance:
        return gap, ""
    for number, (a, b) in enumerate(zip(got.hidden_states, want.hidden_states, strict=True)):
        if not (a.float() - b.float()).abs().max().item() <= tolerance * _spread(b):
            return gap, f"first apart after {subject.place(number - 1)}"
    return gap, "first apart in the head"


def shapes_link(subject: Subject) -> Check:
    """Every layer accepts what the one before gives, and the head gives [B, T, V]."""
    entered = [-1]
    layers = subject.model.model.layers
    hooks = [
        layer.register_forward_pre_hook(lambda *_, number=number: entered.append(number))
        for number, layer in enumerate(layers)
    ]
    try:
        out = subject.hidden(subject.probe)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        return Check("shapes link", False, "no logits", f"{subject.place(entered[-1])}: {error}".splitlines()[0])
    finally:
        for hook in hooks:
            hook.remove()
    want = (*subject.probe.shape, subject.model.config.vocab_size)
    ok = tuple(out.logits.shape) == want and len(out.hidden_states) == len(layers) + 1
    return Check("shapes link", ok, f"{tuple(out.logits.shape)}", "" if ok else f"expected {want}")


def loss_finite(subject: Subject) -> Check:
    """The loss of one batch is a number; at the start it is near that of a uniform guess, ln V."""
    with torch.no_grad():
        loss = subject.model(input_ids=subject.batch, labels=subject.batch, use_cache=False).loss.item()
    figure = f"{loss:.3f} (ln V = {math.log(subject.model.config.vocab_size):.3f})"
    if math.isfinite(loss):
        return Check("loss finite", True, figure)
    states = subject.hidden(subject.batch).hidden_states
    bad = next((n - 1 for n, h in enumerate(states) if not torch.isfinite(h).all()), None)
    return Check("loss finite", False, figure, "in the head" if bad is None else f"first in {subject.place(bad)}")


def gradients_finite(subject: Subject) -> Check:
    """Every parameter gets a gradient, and it is finite."""
    model = subject.model.train()
    model.zero_grad(set_to_none=True)
    model(input_ids=subject.batch, labels=subject.batch, use_cache=False).loss.backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    missing = [name for name, g in grads.items() if g is None]
    bad = [name for name, g in grads.items() if g is not None and not torch.isfinite(g).all()]
    idle = sum(g is not None and not g.any() for g in grads.values())
    model.zero_grad(set_to_none=True)
    model.eval()
    detail = [f"no gradient: {subject.place_of(n)}" for n in missing[:3]]
    detail += [f"not finite: {subject.place_of(n)}" for n in bad[:3]]
    good = len(grads) - len(missing) - len(bad)
    figure = f"{good} of {len(grads)} tensors" + (f", {idle} all zero" if idle else "")
    return Check("every gradient finite", not (missing or bad), figure, "; ".join(detail))


def causal(subject: Subject) -> Check:
    """What comes later changes nothing before it."""
    half = LENGTH // 2
    other = subject.probe.clone()
    other[:, half:] = (other[:, half:] + 1) % subject.model.config.vocab_size
    got, want = subject.hidden(other), subject.hidden(subject.probe)
    for out in (got, want):
        out.logits = out.logits[:, :half]
        out.hidden_states = tuple(h[:, :half] for h in out.hidden_states)
    gap, detail = _first_apart(subject, got, want, TOLERANCE[want.logits.dtype] / 10)
    return Check("causal", not detail, f"{gap:.0e} sd", detail)


def cached_decoding(subject: Subject) -> Check:
    """Chunk by chunk and token by token through the cache equals one full forward."""
    want, cache, parts = subject.hidden(subject.probe), None, []
    for start, stop in CHUNKS:
        parts.append(subject.hidden(subject.probe[:, start:stop], cache, use_cache=True))
        cache = parts[-1].past_key_values
    got = parts[0]
    got.logits = torch.cat([p.logits for p in parts], 1)
    got.hidden_states = tuple(torch.cat(hs, 1) for hs in zip(*(p.hidden_states for p in parts), strict=True))
    gap, detail = _first_apart(subject, got, want, TOLERANCE[want.logits.dtype])
    return Check("cached decoding equals full forward", not detail, f"{gap:.0e} sd", detail)


def save_and_load(subject: Subject) -> Check:
    """Saved and loaded again, every tensor and every logit is the same to the last bit."""
    before = subject.hidden(subject.probe).logits
    device, dtype = before.device, next(subject.model.parameters()).dtype
    with tempfile.TemporaryDirectory() as folder:
        subject.model.save_pretrained(folder)
        again = load(Path(folder), device, dtype)
    mine, theirs = subject.model.state_dict(), again.state_dict()
    differ = [n for n in mine if n not in theirs or not torch.equal(mine[n], theirs[n])]
    with torch.no_grad():
        same = torch.equal(again(input_ids=subject.probe, use_cache=False).logits, before)
    detail = f"differs: {subject.place_of(differ[0])}" if differ else ("" if same else "tensors equal, logits not")
    return Check(
        "save and load exact", same and not differ, f"{len(mine) - len(differ)} of {len(mine)} tensors", detail
    )


def learns(subject: Subject) -> tuple[Check, dict]:
    """The loss falls within the given steps."""
    torch.manual_seed(subject.seed)
    batches = ({"input_ids": ids, "labels": ids} for ids in cycle(subject.batches))
    losses = train_steps(subject.model, batches, steps=subject.steps, lr=subject.lr)
    ok = decreased(losses)
    detail = "" if ok else _why_not(subject, losses)
    figure = f"{losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps"
    training = {
        "steps": len(losses),
        "initial_loss": _number(losses[0]),
        "final_loss": _number(losses[-1]),
        "loss_decreased": ok,
    }
    return Check(f"loss falls within {subject.steps} steps", ok, figure, detail), training


def _why_not(subject: Subject, losses: list[float]) -> str:
    for name, p in subject.model.named_parameters():
        if not torch.isfinite(p).all():
            return f"diverged: {subject.place_of(name)} is not finite"
    norms = {n: p.grad.norm().item() for n, p in subject.model.named_parameters() if p.grad is not None}
    if not math.isfinite(losses[-1]) or not norms:
        return "the loss is not finite"
    return f"largest gradient in {subject.place_of(max(norms, key=norms.get))}"


def _number(x: float) -> float | None:
    return round(x, 4) if math.isfinite(x) else None


def load(path: Path, device, dtype: torch.dtype) -> torch.nn.Module:
    """The directory as `AutoModelForCausalLM` loads it, in eval mode."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True, dtype=dtype)
    return model.to(device).eval()


LAWS: tuple[Callable[[Subject], Check], ...] = (
    shapes_link,
    loss_finite,
    causal,
    cached_decoding,
    gradients_finite,
    save_and_load,
)


def verdict(subject: Subject) -> dict:
    """All laws in order; after the first that cannot even run forward, the rest are not asked."""
    checks: list[Check] = []
    for law in LAWS:
        checks.append(law(subject))
        if law is shapes_link and not checks[-1].ok:
            return report(checks, None)
    check, training = learns(subject)
    return report([*checks, check], training)


def report(checks: list[Check], training: dict | None) -> dict:
    """The verdict as JSON: PASS if every check is ok; `training` is None where it was not reached."""
    failed = [c for c in checks if not c.ok]
    reason = "; ".join(f"{c.name}: {c.detail or c.figure}" for c in failed)
    return {
        "verdict": "FAIL" if failed else "PASS",
        "reason": reason,
        "checks": [asdict(c) for c in checks],
        "training": training,
    }
