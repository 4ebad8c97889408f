"""The decoder: embeddings, layers in the order of a schedule, final norm.

B batch, T tokens of a call, P past tokens, S = P + T, D model width, n residual streams of a hyper-connection.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F
from transformers.modeling_outputs import MoeModelOutputWithPast

from .cache import FIELD, own_cache
from .configuration_eulerstack import EulerStackConfig
from .context import Context
from .layer import DecoderLayer
from .norm import build_norm
from .op_context import build_context
from .op_precision import wide
from .pretrained import EulerStackPreTrainedModel
from .walk import Walk, update_biases


@dataclass
class DecoderOutput(MoeModelOutputWithPast):
    """For the losses: `records`, the (part, module, record) of routers and gates in this call, and its `context`."""

    records: tuple | None = None
    context: Context | None = None


class Decoder(EulerStackPreTrainedModel):
    """Token ids or embeddings to hidden states after the final norm."""

    _keys_to_ignore_on_load_unexpected: ClassVar = [r"^mtp\."]  # the extra heads belong to the model around it

    def __init__(self, config: EulerStackConfig):
        super().__init__(config)
        d = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, d)
        if config.positional == "learned":
            self.embed_positions = nn.Embedding(config.max_position_embeddings, d)
        self.layers = nn.ModuleList(
            DecoderLayer(config, i, config.blocks[kind], self.parts) for i, kind in enumerate(config.block_pattern)
        )
        entries = config.schedule or [{"type": "plain", "layers": list(range(len(self.layers)))}]
        self.plain = {i: entry["layers"] for i, entry in enumerate(entries) if entry["type"] == "plain"}
        self.runs = nn.ModuleDict(
            {str(i): self._run(entry) for i, entry in enumerate(entries) if entry["type"] != "plain"}
        )
        self.slots = sum(map(len, self.plain.values())) + sum(run.slots for run in self.runs.values())
        self.norm = build_norm(d, config.rms_norm_eps, config.final_norm) if config.final_norm else nn.Identity()
        self.croppable = all(part.croppable for part in (*self.layers, *self.runs.values()))
        self._is_stateful = not self.croppable  # a draft that is rejected could not be taken back
        if config.quantisation:
            self.parts["fake_quant"](self, config.quantisation, f"{self.base_model_prefix}.")
        self.needs_ids = any(getattr(module, "needs_ids", False) for module in self.modules())
        self.post_init()

    def _run(self, entry: dict) -> nn.Module:
        options = dict(entry)
        kind = options.pop("type")
        return self.parts[f"run_{kind}"](self.config, self.parts, **options)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embed_tokens = value

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,  # [B, T]
        attention_mask: torch.Tensor | None = None,  # [B, S], zero on padding
        position_ids: torch.LongTensor | None = None,  # [B, T]
        past_key_values=None,
        inputs_embeds: torch.Tensor | None = None,  # [B, T, D]
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        cache=None,
        **kwargs,
    ) -> DecoderOutput | tuple:
        """Hidden states [B, T, D]; `kwargs` hold packing (`seq_idx`, `cu_seq_lens_q`) and go on to attention kernels.

        `cache` and `past_key_values` name what an earlier call returned. `hidden_states`, if asked for, has the
        embeddings, then each layer's output, the last one after the final norm.

        Raises ValueError unless one of `input_ids` and `inputs_embeds` is given, for attention maps, beyond the table.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        if kwargs.pop("output_attentions", False):
            raise ValueError("attention maps are not computed; call without output_attentions")
        kwargs.pop("cache_position", None)
        past = past_key_values if cache is None else cache
        use_cache = self._use_cache(use_cache)
        if use_cache or past is not None:
            past = own_cache(past, self.slots, self.croppable)
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if input_ids is None and self.needs_ids:
            input_ids = self._nearest_ids(inputs_embeds)
        context = build_context(
            x,
            past=past,
            attention_mask=attention_mask,
            position_ids=position_ids,
            use_cache=use_cache,
            input_ids=input_ids,
            extra=kwargs,
        )
        show_hidden = said(output_hidden_states, self.config.output_hidden_states)
        x, seen, records = self._pass(self._embed(x, context), context, past, show_hidden)
        output = DecoderOutput(
            last_hidden_state=x,
            hidden_states=seen,
            router_logits=tuple(record.logits for part, _, record in records if part == "ffn") or None,
            records=records or None,
            context=replace(context, memo={}) if records or self.config.mtp else None,
            **{FIELD: past if use_cache else None},
        )
        return output if said(return_dict, self.config.return_dict) else output.to_tuple()

    def _use_cache(self, asked: bool | None) -> bool:
        if self.training and torch.is_grad_enabled() and any(layer.gradient_checkpointing for layer in self.layers):
            return False  # the layers run twice
        return (self.config.use_cache and not self.training) if asked is None else asked

    def _embed(self, x: torch.Tensor, context) -> torch.Tensor:
        """Scale, learned positions and dropout; the residual stream, or each of several, starts here."""
        if self.config.embedding_scale is not None:
            x = x * torch.tensor(self.config.embedding_scale, dtype=x.dtype, device=x.device)
        if self.config.positional == "learned":
            x = x + self.embed_positions(self._places(context))
        if self.config.dtype_policy == "layered_safe":
            x = wide(x)
        x = F.dropout(x, self.config.dropout, self.training)
        return x if self.config.streams is None else x.unsqueeze(2).repeat(1, 1, self.config.streams, 1)

    def _nearest_ids(self, x: torch.Tensor) -> torch.Tensor:
        """The token whose embedding is nearest to each of `x` [B, T, D], for layers that route by token."""
        table, x = (wide(t.detach()) for t in (self.embed_tokens.weight, x))
        return (x @ table.T - table.square().sum(-1) / 2).argmax(-1)

    def _places(self, context) -> torch.Tensor:
        """The place of each token in the table of positions, [B, T]. Raises ValueError beyond its end.

        A GPU is asked only when the sequence is longer than the table, since to ask is to wait for it.
        """
        places, rows = context.positions, self.embed_positions.num_embeddings
        ask = places.device.type == "cpu" or context.key_positions.shape[1] > rows
        if ask and not torch.compiler.is_compiling() and (places.min() < 0 or places.max() >= rows):
            asked = f"positions {places.min().item()} to {places.max().item()} are asked for"
            raise ValueError(f"{asked}, but only 0 to {rows - 1} were learned (max_position_embeddings)")
        return places

    def _pass(self, x: torch.Tensor, context: Context, past, show_hidden: bool):
        """All layers and the final norm; the cache moves on only when every layer has run."""
        walk, first = Walk(self.layers, context, None if past is None else past.states, show_hidden), x
        for i in range(len(self.plain) + len(self.runs)):
            if i in self.plain:
                for index in self.plain[i]:
                    x = walk.layer(index, x)
            else:
                x = self.runs[str(i)](x, walk)
        x = self.norm(self._single(x))
        if context.use_cache:
            past.advance(walk.kept, context.key_positions, context.key_keep, context.key_documents)
        if self.training and torch.is_grad_enabled():
            update_biases(walk.records)
        seen = (first, *(walk.seen[i] for i in range(len(self.layers)))) if show_hidden else ()
        hidden = (*map(self._single, seen[:-1]), x) if show_hidden else None
        return x, hidden, tuple(walk.records)

    def _single(self, x: torch.Tensor) -> torch.Tensor:
        """The mean of the residual streams, [B, T, D]."""
        return x if self.config.streams is None else x.mean(2)


def said(asked: bool | None, otherwise: bool | None) -> bool:
    """A switch of a call, or what the configuration says where the caller says nothing."""
    return bool(otherwise if asked is None else asked)
