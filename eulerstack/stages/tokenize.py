"""corpus, tokenizer -> `tokens/`, `tokenize.json`: the token shards that the full-size check reads, by content."""

import json
import shutil
from pathlib import Path

from eulerstack.stages.export import prepare as prepare
from eulerstack.stages.export import tokenizer_digest

AFTER = ("normalize",)
LIBRARIES = ("tokenizers", "numpy")
WORKER = "front"
MODELING = None
TIME_LIMIT = 3600
OUTPUTS = ("tokenize.json", "tokens")
MAX_SEQ_LEN = 512


def inputs(preset: Path, build: Path) -> dict:
    """The content of the text and of the tokenizer."""
    from eulerstack.data.sample import corpus_digest

    return {"corpus": corpus_digest(), "tokenizer": tokenizer_digest(build)}


def run(preset: Path, build: Path, out: Path) -> None:
    """Raises DataError for text that cannot be read or a token that the vocabulary does not hold."""
    from eulerstack.data.prepare import tokenize_jsonl
    from eulerstack.data.sample import write_corpus
    from eulerstack.export.tokenizer import extra_tokens, resolve
    from eulerstack.ir.types import from_dict

    ir = from_dict(json.loads((build / "normalize.json").read_text(encoding="utf-8"))["ir"])
    contract = ir.tokenizer_contract
    tokenizer = resolve(contract, ir.model.vocab_size, extra_tokens=extra_tokens(ir.transition), fetch=True)
    data = tokenize_jsonl(
        write_corpus(), tokenizer, max_seq_len=MAX_SEQ_LEN, add_bos=contract.add_bos, add_eos=contract.add_eos
    )
    data.check_vocab(ir.model.vocab_size)
    (out / "tokens").mkdir(exist_ok=True)
    for shard in data.shards:  # a copy: the cache of tokens may go at any time, and what is checked must be there
        shutil.copyfile(shard.tokens, out / "tokens" / shard.tokens.name)
    document = {
        "shards": [s.tokens.name for s in data.shards],
        "tokens": data.num_tokens,
        "documents": data.num_documents,
        "stand_in": data.stand_in,
    }
    (out / "tokenize.json").write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def summary(out: Path) -> str:
    found = json.loads((out / "tokenize.json").read_text(encoding="utf-8"))
    stand_in = ", stand-in tokenizer" if found["stand_in"] else ""
    return f"{found['tokens']:,} tokens of {found['documents']} documents{stand_in}"
