"""`depth_gating`: layers that only some tokens pass through, Mixture-of-Depths (Raposo et al. 2024).

D = d_model, H the hidden width of the predictor.
"""

from typing import Annotated, Literal

from pydantic import Field

from eulerstack.language.block import Dims, Shape, block


@block
class DepthGating:
    """Mixture-of-Depths (Raposo et al. 2024)."""

    enabled: bool = Field(True, description="false: every token passes, without a gate")
    capacity: Annotated[float, Field(gt=0, le=1)] = Field(0.5, description="share of the tokens that pass, in training")
    router: Literal["top_k", "learned_gate"] = Field(
        "top_k", description="a score and a predictor of it, or a single gate"
    )

    def tensors(self, dims: Dims) -> dict[str, Shape]:
        """Every parameter of the gate by its name, with its shape."""
        d, hidden = dims.d_model, max(8, dims.d_model // 16)
        shapes: dict[str, Shape] = {"router.weight": (1, d), "router.bias": (1,)}
        if self.router == "top_k":
            shapes |= {"predictor_up.weight": (hidden, d), "predictor_up.bias": (hidden,)}
            shapes |= {"predictor_down.weight": (1, hidden), "predictor_down.bias": (1,)}
        return shapes

    def flops(self, dims: Dims) -> int:
        """FLOPs of the decision about one token."""
        return 2 * sum(rows * columns for rows, columns in _matrices(self.tensors(dims)))

    def kv_cache_bytes(self, dims: Dims, length: int) -> int:
        """One byte a token: whether it passed."""
        return length


def _matrices(shapes: dict[str, Shape]) -> list[Shape]:
    return [shape for name, shape in shapes.items() if name.endswith(".weight")]
