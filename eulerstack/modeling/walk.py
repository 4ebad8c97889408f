"""One pass over the layers of a decoder, in whatever order its schedule visits them.

A layer, or a merge of streams, that runs k times in a pass has k slots in the cache, in the order of its runs.
"""

import torch
from torch import nn

from .context import Context
from .layer import joined


def update_biases(records) -> None:
    """Let every router of a training pass balance its experts, once, however often its layer ran."""
    runs: dict[nn.Module, list] = {}
    for part, module, record in records:
        if part == "ffn":
            runs.setdefault(module, []).append(record)
    for module, found in runs.items():
        module.update_bias(found)


class Walk:
    """Hands every evaluation the state it continues and collects what it leaves.

    `states` are those of an earlier call by slot, or None. After the pass `kept` are the new ones, `records` the
    (part, module, record) of routers and gates, and `seen`, where `show` asks for it, each layer's output by its index.
    """

    def __init__(self, layers: nn.ModuleList, context: Context, states: list | None, show: bool = False):
        self.layers, self.context, self.states, self.show = layers, context, states, show
        self.kept: list = []
        self.records: list[tuple[str, nn.Module, object]] = []
        self.seen: dict[int, torch.Tensor] = {}

    def layer(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """`x` after the layer `index`."""
        layer = self.layers[index]
        x, state, records, *tensors = layer(x, self.context, self._next_state())
        self.kept.append(state)
        self.records += [(part, getattr(layer, part), r) for part, r in joined(records, tensors).items()]
        self.see(index, x)
        return x

    def see(self, index: int, x: torch.Tensor) -> None:
        """`x` is now what the layer `index` leaves."""
        if self.show:
            self.seen[index] = x

    def step(self, module: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
        """What a module outside the layers answers, `module(*inputs, context, state) -> (y, state)`."""
        y, state = module(*inputs, self.context, self._next_state())
        self.kept.append(state)
        return y

    def _next_state(self):
        return None if self.states is None else self.states[len(self.kept)]
