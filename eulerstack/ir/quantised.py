"""Which parameters quantisation-aware training reaches, from their names and shapes alone.

The same rule as `modeling/fake_quant.py` states over modules: the weights of linear layers and the packed matrices of
experts.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from eulerstack.language.block import Shape

PACKED = (".experts.gate_up_proj", ".experts.down_proj")
HEAD = "lm_head.weight"
# Parts that are small and delicate, whose matrices are no linear layers: part of the path of their parameters.
EXACT = {"embed_tokens", "embed_positions", "router", "dt_proj", "mixer_hyper", "ffn_hyper", "depth", "filter"}


def scoped(parameters: dict[str, Shape], scope: Iterable[str]) -> tuple[list[str], list[str]]:
    """The parameters that are quantised, and the patterns of `scope` that match none of those that could be.

    Without patterns all that could be are, but the head's.
    """
    able = [name for name, shape in parameters.items() if quantisable(name, shape)]
    patterns = tuple(scope)
    if not patterns:
        return [name for name in able if name != HEAD], []
    idle = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in able)]
    return [name for name in able if any(fnmatchcase(name, pattern) for pattern in patterns)], idle


def quantisable(name: str, shape: Shape) -> bool:
    """Whether this parameter is the matrix of a linear layer or of experts; a tied head is no parameter."""
    if name.endswith(PACKED):
        return True
    return name.endswith(".weight") and len(shape) == 2 and EXACT.isdisjoint(name.split("."))
