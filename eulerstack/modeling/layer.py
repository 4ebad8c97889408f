"""One decoder layer: a mixer over tokens, a feed-forward layer over features, and how they join the residual stream.

B batch, T tokens, D model width, n residual streams of a hyper-connection.
"""

from dataclasses import replace
from functools import reduce
from operator import add

import torch
from torch import nn
from torch.nn import functional as F
from transformers.modeling_layers import GradientCheckpointingLayer

from .context import Context
from .norm import build_norm
from .op_context import on_device

State = dict[str, torch.Tensor]


class Inner:
    """The configuration as the parts of a layer of another width see it: `hidden_size` is that width."""

    def __init__(self, config, hidden_size: int):
        self.hidden_size, self._config = hidden_size, config

    def __getattr__(self, name: str):
        if name.startswith("__") or name == "_config":  # while it is copied it has no configuration yet
            raise AttributeError(name)
        return getattr(self._config, name)


def build_part(parts: dict[str, type], role: str, config, layer_idx: int, spec: dict) -> nn.Module:
    """The part that `spec` names by its `type`; specs under `branches` arrive in it built."""
    options = dict(spec)
    kind = options.pop("type")
    if "branches" in options:
        inner = options["branches"].items()
        options["branches"] = {name: build_part(parts, role, config, layer_idx, s) for name, s in inner}
    return parts[f"{role}_{kind}"](config, layer_idx, **options)


class Call:
    """One pass through a layer: the state it continues, and the state and the records it leaves.

    The state of a mixer has its own names, that of any other part `<part>/<name>`.
    """

    def __init__(self, context: Context, state: State | None):
        self.context, self.state = context, state or {}
        self.kept: State = {}
        self.records: dict[str, object] = {}

    def own(self, part: str) -> State | None:
        """What the part left in the call before; None if nothing."""
        if part == "mixer":
            return {name: t for name, t in self.state.items() if "/" not in name} or None
        prefix = f"{part}/"
        return {name.removeprefix(prefix): t for name, t in self.state.items() if name.startswith(prefix)} or None

    def keep(self, part: str, state: State | None) -> None:
        prefix = "" if part == "mixer" else f"{part}/"
        self.kept |= {f"{prefix}{name}": t for name, t in (state or {}).items()}

    def run(self, part: str, module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """`module(x, context, state) -> (y, state)`, with its state put away."""
        y, state = module(x, self.context, self.own(part))
        self.keep(part, state)
        return y


class DecoderLayer(GradientCheckpointingLayer):
    """`block` is one entry of `config.blocks`; `parts` maps "mixer_attention", "ffn_mlp", ... to classes.

    With f the mixer or the feed-forward layer and s the residual scaling, norm positions mean
    pre x + s f(n(x)); post n(x + s f(x)); sandwich x + s n'(f(n(x))); post_branch x + s n(f(x)).
    A parallel residual puts f = mixer + ffn, both on the same input, under the mixer's norms (Wang & Komatsuzaki 2021).
    A memory adds to what the mixer gives for the same input. A type "none" leaves out that half with its norms.
    Under a hyper-connection x is n streams, which it reads as one and writes back to.
    """

    def __init__(self, config, layer_idx: int, block: dict, parts: dict[str, type]):
        super().__init__()
        self.position = block["norm"]["position"]
        self.parallel = block["residual"]["type"] == "parallel"
        self.scaling = block["residual"]["scaling"]
        self.dropout = config.dropout
        self.wide_stream = config.dtype_policy == "layered_safe"
        change = block.get("shape_change")
        inner = Inner(config, change["d_out"]) if change else config
        self.present = tuple(p for p in ("mixer", "memory", "ffn") if block.get(p, {"type": "none"})["type"] != "none")
        for part in self.present:
            setattr(self, part, build_part(parts, part, inner, layer_idx, block[part]))
        branches = ["mixer"] * bool({"mixer", "memory"} & set(self.present)) + ["ffn"] * ("ffn" in self.present)
        self.branches = ("mixer",) if self.parallel else tuple(branches)
        for branch in self.branches:
            self._add_branch(branch, config, block, parts, layer_idx)
        if block.get("depth_gating"):
            self.depth = parts["depth_gate"](config, layer_idx, **block["depth_gating"])
        stateful = [p for name, p in self.named_children() if name in STATEFUL]
        self.croppable = all(getattr(part, "croppable", False) for part in stateful)

    def _add_branch(self, branch: str, config, block: dict, parts: dict[str, type], layer_idx: int) -> None:
        """The norms around a branch, and what leads from the residual stream to it and back."""
        d, change, residual = config.hidden_size, block.get("shape_change"), dict(block["residual"])
        for name in [f"{branch}_norm"] + ([f"{branch}_post_norm"] if self.position == "sandwich" else []):
            setattr(self, name, build_norm(d, config.rms_norm_eps, block["norm"]))
        around = dict.fromkeys(("in", "out", "hyper"))  # None is found faster than an attribute that is not there
        if change:
            wide, projection = change["d_out"], change["projection"]
            around["in"] = parts["shape_change"](config, d, wide, projection=projection, to_residual=False)
            around["out"] = parts["shape_change"](config, wide, d, projection=projection, to_residual=True)
        if residual.pop("type") == "hyper_connection":
            residual.pop("scaling")
            around["hyper"] = parts["residual_hyper_connection"](config, layer_idx, **residual)
        for what, module in around.items():
            setattr(self, f"{branch}_{what}", module)

    def forward(self, x: torch.Tensor, context: Context, state: State | None = None):
        """[B, T, D] or [B, T, n, D] -> (x, new state or None, records by part, *the tensors of the records).

        A reentrant checkpoint lets gradients through tensors it returns, not through an object that holds them: hence
        the records' tensors beside them, for `joined` to put back.
        """
        call = Call(on_device(context, x.device), state)
        x = self._gated(x, call) if hasattr(self, "depth") else self._body(x, call)
        tensors = [value for record in call.records.values() for value in vars(record).values()]
        return x, call.kept or None, call.records, *tensors

    def _gated(self, x: torch.Tensor, call: Call) -> torch.Tensor:
        """The body over the tokens that the gate of a Mixture-of-Depths chooses."""
        choice = self.depth.choose(x, call.context, call.own("depth"))
        call.keep("depth", choice.state)
        if choice.record is not None:
            call.records["depth"] = choice.record
        call.context = choice.context
        return self.depth.restore(x, self._body(choice.x, call), choice)

    def _body(self, x: torch.Tensor, call: Call) -> torch.Tensor:
        if self.parallel:
            return self._branch(x, "mixer", call, (self._mix, self._feed))
        for branch in self.branches:
            x = self._branch(x, branch, call, (self._mix if branch == "mixer" else self._feed,))
        return x

    def _mix(self, h: torch.Tensor, call: Call):
        present = (part for part in ("mixer", "memory") if part in self.present)
        return reduce(add, [call.run(part, getattr(self, part), h) for part in present] or [0])

    def _feed(self, h: torch.Tensor, call: Call):
        if "ffn" not in self.present:
            return 0
        y, record = self.ffn(h, call.context)
        if record is not None:
            call.records["ffn"] = record
        return y

    def _branch(self, x: torch.Tensor, name: str, call: Call, functions: tuple) -> torch.Tensor:
        """The residual stream after the sum of `functions` of what they read from it."""
        hyper = getattr(self, f"{name}_hyper")
        h, link = (x, None) if hyper is None else hyper.read(x)
        if self.position in ("pre", "sandwich"):
            h = getattr(self, f"{name}_norm")(h)
        h = self._reshaped(h.to(self._dtype()) if self.wide_stream else h, f"{name}_in", call)
        y = self._reshaped(reduce(add, [f(h, call) for f in functions]), f"{name}_out", call)
        y = (F.dropout(y, self.dropout, self.training) if self.dropout else y).to(x.dtype)
        if self.position == "sandwich":
            y = getattr(self, f"{name}_post_norm")(y)
        elif self.position == "post_branch":
            y = getattr(self, f"{name}_norm")(y)
        x = torch.add(x, y, alpha=self.scaling) if hyper is None else hyper.write(x, self.scaling * y, link)
        return getattr(self, f"{name}_norm")(x) if self.position == "post" else x

    def _reshaped(self, h: torch.Tensor, name: str, call: Call) -> torch.Tensor:
        module = getattr(self, name)
        return h if module is None else call.run(name, module, h)

    def _dtype(self) -> torch.dtype:
        return next(p.dtype for p in self.parameters() if p.is_floating_point())


STATEFUL = {"mixer", "memory", "depth", "mixer_in", "mixer_out", "ffn_in", "ffn_out"}


def joined(records: dict, tensors) -> dict:
    """The records of a layer with the tensors that came back beside them."""
    values = iter(tensors)
    return {name: replace(r, **{field: next(values) for field in vars(r)}) for name, r in records.items()}
