"""One decoder layer: a mixer over tokens, a feed-forward layer over features, and how they join the residual stream.

B batch, T tokens, D model width.
"""

from dataclasses import replace

import torch
from torch.nn import functional as F
from transformers.modeling_layers import GradientCheckpointingLayer

from .context import Context
from .norm import build_norm
from .op_context import on_device

PARTS = ("mixer", "ffn")


class DecoderLayer(GradientCheckpointingLayer):
    """`block` is one entry of `config.blocks`; `parts` maps "mixer_attention", "ffn_mlp", ... to classes.

    With f the mixer or the feed-forward layer and s the residual scaling, norm positions mean
    pre x + s f(n(x)); post n(x + s f(x)); sandwich x + s n'(f(n(x))); post_branch x + s n(f(x)).
    A parallel residual puts f = mixer + ffn, both on the same input, under the mixer's norms (Wang & Komatsuzaki 2021).
    A type "none" leaves out that half with its norms.
    """

    def __init__(self, config, layer_idx: int, block: dict, parts: dict[str, type]):
        super().__init__()
        self.position = block["norm"]["position"]
        self.parallel = block["residual"]["type"] == "parallel"
        self.scaling = block["residual"]["scaling"]
        self.dropout = config.dropout
        self.wide_stream = config.dtype_policy == "layered_safe"
        self.present = tuple(part for part in PARTS if block[part]["type"] != "none")
        for part in self.present:
            options = dict(block[part])
            kind = options.pop("type")
            setattr(self, part, parts[f"{part}_{kind}"](config, layer_idx, **options))
        for part in self.present[:1] if self.parallel else self.present:
            self._add_norms("mixer" if self.parallel else part, config, block["norm"])

    def _add_norms(self, part: str, config, spec: dict) -> None:
        names = [f"{part}_norm"] + ([f"{part}_post_norm"] if self.position == "sandwich" else [])
        for name in names:
            setattr(self, name, build_norm(config.hidden_size, config.rms_norm_eps, spec))

    def forward(self, x: torch.Tensor, context: Context, state: dict[str, torch.Tensor] | None = None):
        """[B, T, D] -> (x [B, T, D], new state or None, router record or None, *the tensors of the record).

        A reentrant checkpoint lets gradients through tensors it returns, not through an object that holds them: hence
        the record's tensors beside it, for `joined` to put back.
        """
        run = self._parallel if self.parallel else self._sequential
        x, new_state, record = run(x, on_device(context, x.device), state)
        return x, new_state, record, *(vars(record).values() if record is not None else ())

    def _parallel(self, x, context, state):
        read, y, new_state, record = self._read(x, "mixer"), 0, None, None
        if "mixer" in self.present:
            y, new_state = self.mixer(read, context, state)
        if "ffn" in self.present:
            z, record = self.ffn(read, context)
            y = y + z
        return self._write(x, y, "mixer"), new_state, record

    def _sequential(self, x, context, state):
        new_state, record = None, None
        if "mixer" in self.present:
            y, new_state = self.mixer(self._read(x, "mixer"), context, state)
            x = self._write(x, y, "mixer")
        if "ffn" in self.present:
            y, record = self.ffn(self._read(x, "ffn"), context)
            x = self._write(x, y, "ffn")
        return x, new_state, record

    def _read(self, x: torch.Tensor, part: str) -> torch.Tensor:
        """What a branch reads from the stream."""
        if self.position in ("pre", "sandwich"):
            x = getattr(self, f"{part}_norm")(x)
        return x.to(self._dtype()) if self.wide_stream else x

    def _write(self, x: torch.Tensor, y: torch.Tensor, part: str) -> torch.Tensor:
        """The stream after a branch has added `y`."""
        y = F.dropout(y, self.dropout, self.training).to(x.dtype)
        if self.position == "sandwich":
            y = getattr(self, f"{part}_post_norm")(y)
        elif self.position == "post_branch":
            y = getattr(self, f"{part}_norm")(y)
        x = x + self.scaling * y
        return getattr(self, f"{part}_norm")(x) if self.position == "post" else x

    def _dtype(self) -> torch.dtype:
        return next(p.dtype for p in self.parameters() if p.is_floating_point())


def joined(record, tensors):
    """The router record of a layer with the tensors that came back beside it."""
    return None if record is None else replace(record, **dict(zip(vars(record), tensors, strict=True)))
