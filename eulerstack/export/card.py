"""The README of an exported directory: what it is and how to load it."""

from collections import Counter

from eulerstack.export.tokenizer import Tokenizer

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
> **Stand-in tokenizer.** The preset's own tokenizer could not be reached. The one here is {source}. Replace it
> before you train on text.
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
    lines = ["| kind of layer | count | mixer | feed-forward |", "|---|---|---|---|"]
    for kind, count in Counter(config["block_pattern"]).items():
        block = config["blocks"][kind]
        lines.append(f"| {kind} | {count} | {block['mixer']['type']} | {block['ffn']['type']} |")
    return "\n".join(lines)
