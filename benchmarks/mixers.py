"""Training step, prefill and peak memory of every mixer and FFN, beside transformers' class for the same work.

    python benchmarks/mixers.py [--small] [--repeat N] [--only NAME ...] [--clock wall|cpu]

Small models in float32 on the CPU: batch 2, length 1024, d_model 512 (with --small batch 2, length 48, d_model 32). A
training step is a forward and a backward pass, a prefill a forward pass that fills a cache. Both sides have the same
sizes and run in turn in this process, after one run each that does not count; a ratio is ours over theirs, of medians.
A side that takes longer than 20 seconds runs once: transformers' Mamba and Jamba need minutes for a training step.
Memory is the highest sum of what torch's allocator holds during a training step over what it held before: gradients
and activations, counted by torch's profiler to the byte, so that noise, libraries and the allocator's reserve stay out.
What transformers has no class for stands beside its Llama, without an aim. The cpu clock counts all threads, and is
the steadier one where others use the machine.
"""

import argparse
import os
import time
from collections.abc import Callable
from statistics import median

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler is loud

import torch
from cases import CASES, SIZES, Case, Size
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from eulerstack.compiler.runtime import runtime_config
from eulerstack.export.build import build
from eulerstack.ir.normalizer import normalize_to_ir

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
MEASURES = ("train", "prefill", "memory")
LONG = 20.0  # seconds


def payload(case: Case, size: Size) -> dict:
    """config.json of our side, from a preset."""
    layers = {f"layer{i}": layer for i, layer in enumerate(case.ours(size))}
    model = {"name": "benchmark", "d_model": size.d, "vocab_size": size.vocab, "max_seq_len": size.length}
    heads = {"n_heads": size.heads, "n_kv_heads": size.heads // 2, "d_ff": size.d_ff, "dtype": "float32"}
    preset = {
        "schema_version": 1,
        "model": model | heads,
        "tokenizer_contract": {"type": "byte_bpe"},
        "embedding": {"type": "learned", "positional": "rope"},
        "layer_templates": layers,
        "layer_schedule": [{"template": name} for name in layers],
        "head": {"type": "causal_lm"},
    }
    return runtime_config(normalize_to_ir(preset))


def models(case: Case, size: Size) -> dict[str, torch.nn.Module]:
    torch.manual_seed(0)
    return {
        "ours": build(payload(case, size)),
        "theirs": AutoModelForCausalLM.from_config(case.theirs(size)),
    }


def train(model: torch.nn.Module, ids: torch.Tensor) -> None:
    model.zero_grad(set_to_none=True)
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()


def prefill(model: torch.nn.Module, ids: torch.Tensor) -> None:
    with torch.no_grad():
        model(input_ids=ids, use_cache=True)


def medians(work: Callable, sides: dict, ids: torch.Tensor, repeat: int, clock: Callable[[], float]) -> dict:
    """Seconds of `work` on each side, the sides in turn."""
    found: dict[str, list[float]] = {side: [] for side in sides}
    for model in sides.values():
        model.train(work is train)
    for turn in range(repeat + 1):
        for side, model in sides.items():
            if found[side] and found[side][0] > LONG:
                continue
            start = clock()
            work(model, ids)
            took = clock() - start
            if turn or took > LONG:
                found[side].append(took)
    return {side: median(seconds) for side, seconds in found.items()}


def peak(model: torch.nn.Module, ids: torch.Tensor) -> int:
    """The most bytes that a training step holds at once, beyond those held before it."""
    model.train().zero_grad(set_to_none=True)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        train(model, ids)
    events = (e for e in watched.profiler.kineto_results.events() if e.name() == "[memory]")
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def measure(case: Case, size: Size, repeat: int, clock: Callable[[], float]) -> dict[str, dict[str, float]]:
    sides = models(case, size)
    ids = torch.randint(2, size.vocab, (size.batch, size.length))
    found = {work.__name__: medians(work, sides, ids, repeat, clock) for work in (train, prefill)}
    return found | {"memory": {side: peak(model, ids) for side, model in sides.items()}}


def report(name: str, aims: tuple, found: dict[str, dict[str, float]]) -> list[str]:
    """Print a line; returns the measures that miss their aim."""
    ratios = {key: found[key]["ours"] / found[key]["theirs"] for key in MEASURES}
    scales = {"train": 1e3, "prefill": 1e3, "memory": 1e-6}
    cells = [
        f"{scales[key] * found[key]['ours']:10.1f}{scales[key] * found[key]['theirs']:10.1f}{ratios[key]:7.2f}"
        for key in MEASURES
    ]
    print(f"{name:12s}{''.join(cells)}", flush=True)
    bounds = zip(MEASURES, aims, strict=True)
    return [
        f"{name} {key}: {ratios[key]:.2f}, aim {aim:.2f}" for key, aim in bounds if aim and ratios[key] > aim + 0.005
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="sanity size: does it run at all?")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    asked = parser.parse_args()
    logging.set_verbosity_error()
    columns = ("train, ms", "prefill, ms", "memory, MB")
    print(f"{'':12s}" + "".join(f"{name:>27s}" for name in columns))
    print(f"{'':12s}" + f"{'ours':>10s}{'theirs':>10s}{'ratio':>7s}" * 3)
    missed = []
    for name in asked.only:
        case = CASES[name]
        aims = tuple(aim and 1.0 for aim in case.aims) if asked.small else case.aims  # loops are short there
        found = measure(case, SIZES["small" if asked.small else "full"], asked.repeat, CLOCKS[asked.clock])
        missed += report(name, aims, found)
    print("every aim is met" if not missed else "missed:\n  " + "\n  ".join(missed))


if __name__ == "__main__":
    main()
