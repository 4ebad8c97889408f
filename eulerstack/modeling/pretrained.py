"""What transformers asks of every model class: its flags, and how parameters start."""

from typing import ClassVar

import torch
from torch import nn
from transformers import PreTrainedModel

from .configuration_eulerstack import EulerStackConfig
from .initial import Init, draw, rules_of


class EulerStackPreTrainedModel(PreTrainedModel):
    """`parts` maps "mixer_attention", "ffn_moe", ... to the classes this model uses; the entry file sets it."""

    config_class = EulerStackConfig
    config: EulerStackConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar = ["DecoderLayer"]
    _supports_sdpa = True
    parts: ClassVar[dict[str, type]] = {}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        init = Init(**self.config.init, n_layers=self.config.num_hidden_layers)
        for name, rule in rules_of(module, init).items():
            tensor = getattr(module, name)
            if not getattr(tensor, "_is_hf_initialized", False):  # never over a loaded weight
                draw(tensor, rule)
