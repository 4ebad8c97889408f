"""The README of an exported directory: what it is and how to load it."""

import json
from collections import Counter

from eulerstack.export.tokenizer import Tokenizer
from eulerstack.language.where import leaves

CARD = """---
library_name: transformers
pipeline_tag: text-generation
---
# {title}

A decoder with fresh, untrained weights, built by EulerStack from the preset `{preset}`.
{notes}
| | |
|---|---|
| parameters | {parameters:,} |
| layers | {layers} |
| width | {width} |
| vocabulary | {vocab} |
| positions | {positions} |
| stored as | {dtype} |
| seed | {seed} |

{table}

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("path/to/this/directory", trust_remote_code=True, dtype="auto")
tokenizer = AutoTokenizer.from_pretrained("path/to/this/directory", trust_remote_code=True)
```

The code beside this file needs torch and transformers alone. `manifest.json` holds the sha256 of every file.
"""

SMALL = """
> **Small variant.** The preset's topology at a fraction of its size, for checks of the code; not the model itself.
"""
STAND_IN = """
> **Stand-in tokenizer.** The preset's own tokenizer could not be reached.
> The one here is {source}.
> It has few merges and many reserved tokens, so what an untrained model says is mostly reserved tokens.
> Replace it before you train on text.
"""


def card(config: dict, tokenizer: Tokenizer, about: dict) -> str:
    """The text for a directory with this `config.json`; `about` is the head of its manifest."""
    small = about["variant"] == "small"
    notes = (SMALL if small else "") + (STAND_IN.format(source=tokenizer.source) if tokenizer.stand_in else "")
    return CARD.format(
        title=f"{about['preset']}, small variant" if small else about["preset"],
        preset=about["preset"],
        notes=notes,
        parameters=about["parameters"],
        layers=config["num_hidden_layers"],
        width=config["hidden_size"],
        vocab=config["vocab_size"],
        positions=config["max_position_embeddings"],
        dtype=config["dtype"],
        seed=about["seed"],
        table=_kinds(config),
    )


def _kinds(config: dict) -> str:
    """A table of the kinds of layer: how many there are and what they are made of."""
    blocks = config["blocks"]
    rows = [["kind of layer", "count", "mixer", "feed-forward", "differs in"], ["---"] * 5]
    for kind, count in Counter(config["block_pattern"]).items():
        block = blocks[kind]
        alike = [other for other in blocks.values() if _types(other) == _types(block)]
        rows.append([kind, str(count), *_types(block), _own(block, alike)])
    width = 5 if any(row[4] for row in rows[2:]) else 4
    return "\n".join(f"| {' | '.join(row[:width])} |" for row in rows)


def _types(block: dict) -> tuple[str, str]:
    return block["mixer"]["type"], block["ffn"]["type"]


def _own(block: dict, alike: list[dict]) -> str:
    """The values of a block in which those of the same mixer and feed-forward differ."""
    others = [dict(leaves(other)) for other in alike]
    varying = ((key, value) for key, value in leaves(block) if any(other.get(key) != value for other in others))
    return ", ".join(f"{key} {value if isinstance(value, str) else json.dumps(value)}" for key, value in varying)
