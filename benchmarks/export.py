"""Time and peak memory of an export beside transformers' own way: `from_config` and `save_pretrained`.

    python benchmarks/export.py [--small] [--repeat N] [--folder DIR]

A Llama of 1.2 B parameters in bfloat16 (about 20 M with --small), each side in a process of its own, in turn; of N
runs the fastest counts. "work" leaves out the start of Python and the import of the libraries. Our side also
computes checksums and waits until all bytes are on the disk; transformers' side does neither.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIDES = ("eulerstack", "transformers")
AIM = 1 / 3
SIZES = {
    "full": {"d": 2048, "layers": 22, "heads": 32, "kv_heads": 4, "d_ff": 5632, "vocab": 50304},
    "small": {"d": 256, "layers": 8, "heads": 8, "kv_heads": 2, "d_ff": 704, "vocab": 25088},
}


def preset(d: int, layers: int, heads: int, kv_heads: int, d_ff: int, vocab: int) -> dict:
    """This Llama in the preset language."""
    sizes = {"d_model": d, "n_heads": heads, "n_kv_heads": kv_heads, "d_ff": d_ff, "vocab_size": vocab}
    return {
        "schema_version": 1,
        "model": {"name": "benchmark", "max_seq_len": 4096} | sizes,
        "tokenizer_contract": {"type": "byte_bpe"},
        "embedding": {"type": "learned", "positional": "rope", "tie_word_embeddings": False},
        "layer_templates": {"block": {"mixer": {"type": "attention"}, "ffn": {"type": "gated_mlp"}}},
        "layer_schedule": [{"template": "block", "repeat": layers}],
        "head": {"type": "causal_lm", "tie_weights": False},
    }


def with_eulerstack(size: dict, folder: Path) -> float:
    import eulerstack.modeling.causal_lm  # noqa: F401 - otherwise imported while the clock runs
    from eulerstack.compiler.runtime import runtime_config
    from eulerstack.export.directory import write_directory
    from eulerstack.export.tokenizer import Tokenizer
    from eulerstack.ir.normalizer import normalize_to_ir

    payload = runtime_config(normalize_to_ir(preset(**size)))
    nothing = Tokenizer({}, False, "none", 0, None, None, None)
    start = time.perf_counter()
    write_directory(
        payload,
        nothing,
        folder / "hf",
        preset_name="benchmark",
        ir_digest="",
        seed=0,
        predicted_params=parameters(**size),
    )
    return time.perf_counter() - start


def with_transformers(size: dict, folder: Path) -> float:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM  # noqa: F401 - as above

    config = LlamaConfig(
        vocab_size=size["vocab"],
        hidden_size=size["d"],
        num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"],
        num_key_value_heads=size["kv_heads"],
        intermediate_size=size["d_ff"],
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    )
    start = time.perf_counter()
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder / "hf")
    return time.perf_counter() - start


def parameters(d: int, layers: int, heads: int, kv_heads: int, d_ff: int, vocab: int) -> int:
    attention = 2 * d * d + 2 * d * (d // heads) * kv_heads
    return 2 * vocab * d + layers * (attention + 3 * d * d_ff + 2 * d) + d


def child(side: str, size: str, folder: Path) -> None:
    """Do one side's work and print its figures as JSON."""
    work = {"eulerstack": with_eulerstack, "transformers": with_transformers}[side](SIZES[size], folder)
    written = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps({"work": work, "peak": peak, "written": written}))


def measure(side: str, size: str, where: Path | None) -> dict:
    with tempfile.TemporaryDirectory(dir=where) as folder:
        command = [sys.executable, __file__, "--side", side, "--size", size, "--folder", folder]
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
        start = time.perf_counter()
        run = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path})
        return json.loads(run.stdout) | {"process": time.perf_counter() - start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="20 M parameters: does it run at all?")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="a folder on the disk to write to")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--size", choices=SIZES, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        child(asked.side, asked.size, asked.folder)
    else:
        compare("small" if asked.small else "full", asked.repeat, asked.folder)


def compare(size: str, repeat: int, where: Path | None) -> None:
    runs = {side: [] for side in SIDES}
    for _ in range(repeat):
        for side in SIDES:
            runs[side].append(measure(side, size, where))
    report(runs, parameters(**SIZES[size]))


def report(runs: dict[str, list[dict]], count: int) -> None:
    best = {side: {key: min(run[key] for run in found) for key in found[0]} for side, found in runs.items()}
    print(f"{count:,} parameters")
    print(f"{'':14s}{'work, s':>10s}{'process, s':>12s}{'peak, MB':>10s}{'written, MB':>13s}")
    for side, b in best.items():
        print(f"{side:14s}{b['work']:10.2f}{b['process']:12.2f}{b['peak'] / 1e6:10.0f}{b['written'] / 1e6:13.1f}")
    ratios = {key: best["eulerstack"][key] / best["transformers"][key] for key in ("work", "process", "peak")}
    print(f"{'ratio':14s}{ratios['work']:10.2f}{ratios['process']:12.2f}{ratios['peak']:10.2f}")
    print(f"aim: {AIM:.2f} of the work and of the peak")


if __name__ == "__main__":
    main()
