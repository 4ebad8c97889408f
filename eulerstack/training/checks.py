"""A sanity run: load an exported directory as a stranger would, check the laws, write the verdict.

    python checks.py DIR OUT.json (--corpus DOLMA.jsonl | --tokens SHARD.npy) [--device cpu] [--dtype float32] ...

Run by its path in a process that cannot import eulerstack; the files beside it that it imports are all it shares.
"""

import argparse
import json
import resource
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from laws import Check, first_line, report, verdict
from subject import Subject, load


def from_corpus(path: Path, corpus: Path) -> tuple[torch.Tensor, ...]:
    """One batch [2, 32]: the first tokens of a dolma file by the directory's own tokenizer."""
    from transformers import AutoTokenizer

    tokenizer, ids, needed = AutoTokenizer.from_pretrained(path, trust_remote_code=True), [], 2 * 32
    with corpus.open(encoding="utf-8") as lines:
        for line in lines:
            ids += tokenizer(json.loads(line)["text"], add_special_tokens=False, verbose=False)["input_ids"]
            if len(ids) >= needed:
                return (torch.tensor(ids[:needed]).view(2, 32),)
    raise SystemExit(f"{corpus.name} has {len(ids)} tokens, {needed} are needed")


def from_shard(shard: Path, *, rows: int, length: int) -> tuple[torch.Tensor, ...]:
    """Batches [rows, length] of a token shard, without its incomplete rest."""
    ids = np.load(shard, mmap_mode="r")
    count = len(ids) // (rows * length)
    if not count:
        raise SystemExit(f"{shard.name} has {len(ids)} tokens, {rows * length} are needed")
    batches = ids[: count * rows * length].reshape(count, rows, length)[:64]
    return tuple(torch.from_numpy(batch.astype("int64")) for batch in batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    parser.add_argument("out", type=Path)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--corpus", type=Path)
    source.add_argument("--tokens", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--rows", type=int, default=2, help="of a batch of --tokens")
    parser.add_argument("--length", type=int, default=512, help="of a batch of --tokens")
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    batches = ()
    try:
        model = load(a.dir, a.device, getattr(torch, a.dtype))
        length = min(a.length, model.config.max_position_embeddings)
        batches = from_shard(a.tokens, rows=a.rows, length=length) if a.tokens else from_corpus(a.dir, a.corpus)
    except Exception as error:  # code under test may raise anything
        answer = report([Check("loads from disk", False, "no model", first_line(error))], [])
    else:
        answer = verdict(Subject(model, tuple(b.to(a.device) for b in batches), a.steps, a.lr, a.seed))
    run = {name: getattr(a, name) for name in ("device", "dtype", "steps", "lr", "seed")}
    answer["run"] = run | {"batch": list(batches[0].shape) if batches else None}
    a.out.write_text(json.dumps(answer, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"peak memory: {_peak(a.device) / 2**30:.2f} GiB")  # in the log: it is not the same every time


def _peak(device: str) -> int:
    """The most bytes that were held at once, on the device if that is not the CPU."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    main()
