"""A loaded model with what to feed it, and how its parts are called in a verdict.

Runs where eulerstack cannot be imported (checks.py). B batch, T tokens.
"""

import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

CHUNKS = ((0, 9), (9, 10), (10, 11), (11, 18), (18, 26))
LENGTH = CHUNKS[-1][1]


@dataclass(frozen=True)
class Subject:
    """Batches [B, T] of token ids are trained on in turn; `losses` are those of the training, once there was one."""

    model: torch.nn.Module
    batches: tuple[torch.Tensor, ...]
    steps: int
    lr: float
    seed: int
    losses: list[float] = field(default_factory=list)
    _trail: list[str] = field(default_factory=lambda: ["outside the model"])

    def __post_init__(self):
        """Every part leaves its name behind when it starts to compute."""
        base = self.model.model
        self.model.register_forward_pre_hook(partial(self._enter, "the embedding"))
        for number, layer in enumerate(base.layers):
            layer.register_forward_pre_hook(partial(self._enter, self.place(number)))
        base.register_forward_hook(partial(self._enter, "the head"))
        self.model.register_forward_hook(partial(self._enter, "what follows the head"))

    def _enter(self, name: str, *_) -> None:
        self._trail[:] = [name]

    @property
    def whereabouts(self) -> str:
        """The part that computed last."""
        return self._trail[0]

    @property
    def batch(self) -> torch.Tensor:
        return self.batches[0]

    @property
    def probe(self) -> torch.Tensor:
        return self.batch[:2, :LENGTH]

    def place(self, layer: int) -> str:
        """A layer by number and template; -1 is the embedding."""
        if layer < 0:
            return "the embedding"
        kind = self.model.config.block_pattern[layer]  # an overridden template is called <template>.<n>
        base = re.sub(r"\.\d+$", "", kind)
        return f"layer {layer} (template {base if base in self.model.config.blocks else kind})"

    def place_of(self, parameter: str) -> str:
        """A parameter by name, with its layer and template."""
        number = re.search(r"\blayers\.(\d+)\.", parameter)
        return f"{self.place(int(number[1]))}: {parameter}" if number else parameter

    def groups(self) -> dict[str, list[torch.nn.Parameter]]:
        """The parameters of each part, the head first, the embedding last."""
        found: dict[str, list[torch.nn.Parameter]] = {}
        for name, parameter in reversed(list(self.model.named_parameters())):
            found.setdefault(self.place_of(name).partition(":")[0], []).append(parameter)
        return found

    def hidden(self, ids: torch.Tensor, cache=None, *, use_cache: bool = False):
        """One forward pass without gradients, with every layer's output."""
        with torch.no_grad():
            return self.model(input_ids=ids, past_key_values=cache, use_cache=use_cache, output_hidden_states=True)

    def loss(self) -> torch.Tensor:
        """The loss of the first batch."""
        return self.model(input_ids=self.batch, labels=self.batch, use_cache=False).loss


def load(path: Path, device, dtype: torch.dtype) -> torch.nn.Module:
    """The directory as `AutoModelForCausalLM` loads it, in eval mode; ValueError if its weights are not the model's."""
    from transformers import AutoModelForCausalLM

    model, loading = AutoModelForCausalLM.from_pretrained(
        path, trust_remote_code=True, dtype=dtype, output_loading_info=True
    )
    wrong = {what.replace("_", " "): sorted(map(str, names)) for what, names in loading.items() if names}
    if wrong:
        raise ValueError("; ".join(f"{what}: {', '.join(names[:3])}" for what, names in wrong.items()))
    return model.to(device).eval()


def own_memory(model: torch.nn.Module) -> torch.nn.Module:
    """`model` with every tensor at the start of memory of its own. Loaded from a file they lie wherever its header
    ends, and kernels add up numbers from an odd place in another order."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
    return model
