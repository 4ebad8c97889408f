"""An exported directory is loaded as any model of the Hub, and generates. EulerStack itself is not needed here.

    python examples/02_load_and_generate.py out/simple --prompt "Once upon a time"

The weights of a fresh export are random, so the text is noise. What is shown is that the directory stands on its own:
configuration, code, weights, tokenizer, and a cache that gives what the full forward pass gives.
"""

import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description="Load an exported directory and generate text.")
    parser.add_argument("directory", help="what 01_compile_and_export.py or `doit export:NAME` wrote")
    parser.add_argument("--prompt", default="The first law of")
    parser.add_argument("--max-new-tokens", type=int, default=16)
    args = parser.parse_args()

    # `trust_remote_code` runs the Python files in that directory: say it for directories you know.
    tokenizer = AutoTokenizer.from_pretrained(args.directory, trust_remote_code=True)
    model = AutoModelForCausalLM.from_pretrained(args.directory, trust_remote_code=True, dtype=torch.float32).eval()
    print(f"{type(model).__name__}: {model.num_parameters():,} parameters, {model.config.num_hidden_layers} layers")

    inputs = tokenizer(args.prompt, return_tensors="pt")
    tokens = inputs["input_ids"]
    with torch.no_grad():
        out = model(**inputs, labels=tokens)
    print(
        f"loss {out.loss:.3f}; a model that knows nothing has about {torch.tensor(model.config.vocab_size).log():.3f}"
    )

    generated = model.generate(**inputs, max_new_tokens=args.max_new_tokens, do_sample=False)
    print(repr(tokenizer.decode(generated[0], skip_special_tokens=True)))

    # Greedy decoding with the cache took the most likely token at each place; one pass over the result must agree.
    with torch.no_grad():
        logits = model(generated).logits[:, tokens.shape[1] - 1 : -1]
    chosen = generated[:, tokens.shape[1] :]
    below = logits.amax(-1) - logits.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
    print(f"{chosen.shape[1]} tokens; furthest below the best logit of a full pass: {below.max():.0e}")
    assert below.max() < 1e-3


if __name__ == "__main__":
    main()
