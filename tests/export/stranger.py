"""Someone who has the directory and not the package: `stranger.py DIRECTORY SECOND` loads, runs and saves the model."""

import sys
from pathlib import Path

sys.modules["eulerstack"] = None  # an import of it fails, even where it is installed

import torch  # noqa: E402 - after the hook that hides the package
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402 - after the hook that hides the package


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, dtype="auto").eval()


def main(folder: str, second: str) -> None:
    model, tokenizer = load(folder), AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    torch.manual_seed(0)
    ids = torch.randint(2, model.config.vocab_size, (2, 23))
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
    assert torch.isfinite(logits).all()
    text = "naïve café"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert out.shape[1] > ids.shape[1]
    model.save_pretrained(second)
    assert {p.name for p in Path(folder).glob("*.py")} == {p.name for p in Path(second).glob("*.py")}
    with torch.no_grad():
        assert torch.equal(load(second)(input_ids=ids, use_cache=False).logits, logits)
    parameters = sum(p.numel() for p in model.parameters())
    torch.save({"ids": ids, "logits": logits, "parameters": parameters}, Path(second) / "seen.pt")


main(*sys.argv[1:])
