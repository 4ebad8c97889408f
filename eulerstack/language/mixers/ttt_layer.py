"""The `ttt_layer` mixer: a state that is itself a small model, trained at test time (Sun et al. 2024).

H = n_heads inner models of P = head_dim features, k = inner_steps_per_token, Z = mini_batch. A layer I -> O of an inner
model counts its bias as the weight of a last input of 1.
"""

from dataclasses import replace
from itertools import pairwise
from typing import ClassVar, Literal

from pydantic import Field

from eulerstack.language.block import EXT, Dims, Plain, PositiveFloat, PositiveInt, Shape, block


@block
class InnerModel:
    """The model that is the state."""

    type: Literal["mlp", "linear"] = Field("mlp", description="one hidden layer with gelu, or one linear map")
    hidden: PositiveInt = Field(256, description="hidden features of a head (mlp)")


@block
class TTT:
    """Options of a test-time-training layer."""

    inner_model: InnerModel = Field(InnerModel(), description="the model of each head, which is the state")
    inner_optimizer: Literal["sgd", "adamw"] = Field("sgd", description="how the inner model learns")
    inner_lr: PositiveFloat = Field(0.01, description="its learning rate, which a gate lowers for each token")
    inner_steps_per_token: PositiveInt = Field(1, description="passes over a mini-batch, with one step in each")
    mini_batch: PositiveInt = Field(
        16, description="tokens whose gradients start from the same weights", json_schema_extra=EXT
    )


@block
class Block(Plain):
    """`mixer: {type: ttt_layer, ttt: {...}}`"""

    type: Literal["ttt_layer"] = Field(description="a model that learns as it reads")
    ttt: TTT = Field(TTT(), description="its options")

    keeps: ClassVar[tuple[str, ...]] = ("ssm_state",)

    def shrunk(self, dims: Dims, small: Dims) -> "Block":
        inner = self.ttt.inner_model
        inner = replace(inner, hidden=min(inner.hidden, 12))
        return replace(self, ttt=replace(self.ttt, inner_model=inner, mini_batch=min(self.ttt.mini_batch, 5)))

    def runtime(self, dims: Dims) -> dict:
        own, inner = self.ttt, self.ttt.inner_model
        hidden = inner.hidden if inner.type == "mlp" else None
        sizes = {"heads": dims.n_heads, "head_dim": dims.head_dim, "inner_model": inner.type, "hidden": hidden}
        names = ("inner_optimizer", "inner_lr", "inner_steps_per_token", "mini_batch")
        return {"type": "ttt_layer"} | sizes | {name: getattr(own, name) for name in names}

    def tensors(self, dims: Dims) -> dict[str, Shape]:
        heads, width = dims.n_heads, dims.n_heads * dims.head_dim
        shapes: dict[str, Shape] = {f"{name}_proj.weight": (width, dims.d_model) for name in "qkv"}
        shapes |= {"o_proj.weight": (dims.d_model, width)}
        shapes |= {"rate_proj.weight": (heads, dims.d_model), "rate_proj.bias": (heads,)}
        for i, (inputs, out) in enumerate(self._layers(dims), 1):
            shapes |= {f"W{i}": (heads, inputs - 1, out), f"b{i}": (heads, out)}
        return shapes | {"norm_weight": (heads, dims.head_dim), "norm_bias": (heads, dims.head_dim)}

    def _layers(self, dims: Dims) -> list[tuple[int, int]]:
        """I and O of each layer of an inner model."""
        inner = self.ttt.inner_model
        widths = [dims.head_dim] * 2 if inner.type == "linear" else [dims.head_dim, inner.hidden, dims.head_dim]
        return [(inputs + 1, out) for inputs, out in pairwise(widths)]

    def flops(self, dims: Dims, length: int) -> int:
        """2 (weights of the projections) + the inner model as full mini-batches compute it, whatever `length`.

        A layer is applied in each pass and once for the output, and all but the first go backwards in each pass: 2 I O
        each time. `sgd` sums gradients in each pass, 2 I O, and applies weights that have moved in j passes as an
        attention over the Z tokens of each, 2 j Z (I + O) more. `adamw` moves the weights of every token one by one, in
        each pass by a sum of gradients of its own, 2 Z I O, and per weight 3 for m, 4 for v, 7 for the step without the
        root.
        """
        own, total = self.ttt, 0
        passes, adamw = own.inner_steps_per_token, own.inner_optimizer == "adamw"
        moved = 0 if adamw else passes * (passes - 1) // 2  # passes gone by, summed over the passes
        reads = 0 if adamw else moved + passes
        for i, (inputs, out) in enumerate(self._layers(dims)):
            total += 2 * inputs * out * (passes + 1)
            total += (2 * own.mini_batch + 14 if adamw else 2) * inputs * out * passes
            total += 2 * own.mini_batch * reads * (inputs + out)
            if i > 0:  # without the constant input
                total += 2 * (inputs - 1) * out * passes + 2 * own.mini_batch * moved * (inputs - 1 + out)
        linear = sum(s[0] * s[1] for name, s in self.tensors(dims).items() if name.endswith("_proj.weight"))
        return 2 * linear + dims.n_heads * total

    def state_bytes(self, dims: Dims) -> int:
        """Float32: a weight, its k sums of gradients, of adamw its two moments, and the steps of each head and layer.
        The number of tokens in the open mini-batch takes 8."""
        layers, adamw = self._layers(dims), self.ttt.inner_optimizer == "adamw"
        copies = 1 + self.ttt.inner_steps_per_token + 2 * adamw
        weights = sum(inputs * out for inputs, out in layers)
        return 4 * dims.n_heads * (copies * weights + adamw * len(layers)) + 8
