"""`head.mtp`: multi-token prediction, modules that predict the tokens after the next one.

Reference: DeepSeek-AI 2024, DeepSeek-V3 Technical Report, section 2.2. D = d_model.
"""

from collections.abc import Iterator
from dataclasses import replace

from pydantic import Field

from eulerstack.language.block import Dims, Name, NonNegativeFloat, PositiveInt, Shape, block

SMALL = 2  # modules of the small variant, and layers of each: one that follows another, where there are several


@block
class Mtp:
    """Multi-token prediction (DeepSeek-V3)."""

    n_predict: PositiveInt = Field(1, description="modules in a chain, each for a token further on")
    head_layers: PositiveInt = Field(1, description="decoder layers of one module")
    head_template: Name = Field(description="template of these layers")
    train_loss_weight: NonNegativeFloat = Field(
        0.1, description="weight of the mean of the modules' losses, in training"
    )

    def shrunk(self) -> "Mtp":
        """The same in the small variant of a model."""
        return replace(self, n_predict=min(self.n_predict, SMALL), head_layers=min(self.head_layers, SMALL))

    def layer_prefixes(self) -> Iterator[str]:
        """Under which name in the checkpoint each decoder layer of the modules lies, every one of `head_template`."""
        for k in range(self.n_predict):
            yield from (f"mtp.heads.{k}.layers.{j}" for j in range(self.head_layers))

    def tensors(self, dims: Dims, norm: dict[str, Shape]) -> dict[str, Shape]:
        """Every other parameter by its name in the checkpoint: norms of the two inputs, the projection, the final norm,
        whose own parameters are `norm` (empty if the model has none)."""
        d, shapes = dims.d_model, {}
        own = {"hidden_norm.weight": (d,), "token_norm.weight": (d,), "proj.weight": (d, 2 * d)}
        for k in range(self.n_predict):
            shapes |= {f"mtp.heads.{k}.{name}": shape for name, shape in (own | norm).items()}
        return shapes
