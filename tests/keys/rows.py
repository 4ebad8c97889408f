"""What a row is that shows a key to act, and what rows of all subjects say. Read by path (runpy)."""

from dataclasses import dataclass, field
from typing import Any

T = "layer_templates.*"
A = f"{T}.mixer<attention>.attention"
ATTENTION, MLP = {"type": "attention"}, {"type": "gated_mlp"}
MOE = {"type": "moe", "moe": {"experts": 4, "top_k": 2}}
EXPERTS = {f"{T}.ffn": MOE}
TWO = {"layer_templates.two": {"mixer": {"type": "none"}, "ffn": {"type": "mlp"}}}


@dataclass(frozen=True)
class Row:
    """`values` of `key` differ pairwise in what the observer `shows` sees, and in none of `same`; `...` is no value.

    `given` is what else the preset says. `alike` are values that mean the same as the first.
    """

    key: str
    values: tuple
    shows: str = "logits"
    same: tuple[str, ...] = ()
    given: dict[str, Any] = field(default_factory=dict)
    alike: tuple = ()
