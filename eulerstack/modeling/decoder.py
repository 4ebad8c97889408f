"""The decoder and its language-model head.

B batch, T tokens of a call, P past tokens, S = P + T, D model width, V vocabulary.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F
from transformers import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast, MoeCausalLMOutputWithPast, MoeModelOutputWithPast

from .cache import FIELD, own_cache
from .configuration_eulerstack import EulerStackConfig
from .layer import DecoderLayer, joined
from .norm import build_norm
from .op_context import build_context
from .pretrained import EulerStackPreTrainedModel


@dataclass
class DecoderOutput(MoeModelOutputWithPast):
    """`routed` are the (layer, record) pairs of the MoE layers of this call and `keep` [B, T] its padding."""

    routed: tuple | None = None
    keep: torch.Tensor | None = None


class Decoder(EulerStackPreTrainedModel):
    """Token ids or embeddings to hidden states after the final norm."""

    def __init__(self, config: EulerStackConfig):
        super().__init__(config)
        d = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, d)
        if config.positional == "learned":
            self.embed_positions = nn.Embedding(config.max_position_embeddings, d)
        self.layers = nn.ModuleList(
            DecoderLayer(config, i, config.blocks[kind], self.parts) for i, kind in enumerate(config.block_pattern)
        )
        self.norm = build_norm(d, config.rms_norm_eps, config.final_norm) if config.final_norm else nn.Identity()
        mixers = [layer.mixer for layer in self.layers if hasattr(layer, "mixer")]
        self.croppable = all(getattr(mixer, "croppable", False) for mixer in mixers)
        self._is_stateful = not self.croppable  # a draft that is rejected could not be taken back
        self.post_init()

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
            past = own_cache(past, len(self.layers), self.croppable)
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        context = build_context(
            x,
            past=past,
            attention_mask=attention_mask,
            position_ids=position_ids,
            use_cache=use_cache,
            input_ids=input_ids,
            extra=kwargs,
        )
        show_hidden = _said(output_hidden_states, self.config.output_hidden_states)
        x, seen, routed = self._run(self._embed(x, context), context, past, show_hidden)
        output = DecoderOutput(
            last_hidden_state=x,
            hidden_states=seen,
            router_logits=tuple(record.logits for _, record in routed) or None,
            routed=routed or None,
            keep=context.keep if routed else None,
            **{FIELD: past if use_cache else None},
        )
        return output if _said(return_dict, self.config.return_dict) else output.to_tuple()

    def _use_cache(self, asked: bool | None) -> bool:
        if self.training and torch.is_grad_enabled() and any(layer.gradient_checkpointing for layer in self.layers):
            return False  # the layers run twice
        return (self.config.use_cache and not self.training) if asked is None else asked

    def _embed(self, x: torch.Tensor, context) -> torch.Tensor:
        """Scale, learned positions and dropout; the residual stream starts here."""
        if self.config.embedding_scale is not None:
            x = x * torch.tensor(self.config.embedding_scale, dtype=x.dtype, device=x.device)
        if self.config.positional == "learned":
            x = x + self.embed_positions(self._places(context))
        if self.config.dtype_policy == "layered_safe":
            x = x.to(torch.promote_types(x.dtype, torch.float32))
        return F.dropout(x, self.config.dropout, self.training)

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

    def _run(self, x: torch.Tensor, context, past, show_hidden: bool):
        """All layers and the final norm; the cache moves on only when every layer has run."""
        seen, states, routed = [x], [], []
        for i, layer in enumerate(self.layers):
            state = past.states[i] if past is not None else None
            x, state, record, *tensors = layer(x, context, state)
            states.append(state)
            if record is not None:
                routed.append((layer.ffn, joined(record, tensors)))
            if show_hidden:
                seen.append(x)
        x = self.norm(x)
        if context.use_cache:
            past.advance(states, context.key_positions, context.key_keep, context.key_documents)
        if self.training and torch.is_grad_enabled():
            for ffn, record in routed:
                ffn.update_bias(record, context.keep)
        return x, (*seen[:-1], x) if show_hidden else None, tuple(routed)


class CausalLM(EulerStackPreTrainedModel, GenerationMixin):
    """The decoder with a linear head, and the loss; the entry file sets `backbone` to the Decoder with its parts."""

    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}
    backbone: ClassVar[type[Decoder]] = Decoder

    def __init__(self, config: EulerStackConfig):
        super().__init__(config)
        self.model = self.backbone(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.head_bias)
        self._is_stateful = self.model._is_stateful
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.embed_tokens = value

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.lm_head = new_embeddings

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values=None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_router_logits: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        cache=None,
        **kwargs,
    ) -> CausalLMOutputWithPast | MoeCausalLMOutputWithPast | tuple:
        """Arguments of Decoder.forward, and: `labels` [B, T] (-100 counts not), shifted here; `logits_to_keep`, the
        last so many places, or an index, whose logits are wanted (0: all).

        The loss is the cross entropy plus, if router logits are on, `router_aux_loss_coef` times `aux_loss`, both by
        this call's share of `num_items_in_batch` where that is given. Logits are [B, T, V].
        """
        out = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values if cache is None else cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            return_dict=True,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self._head(out.last_hidden_state[:, kept])
        loss = aux = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        show_routers = _said(output_router_logits, self.config.output_router_logits)
        if out.routed and show_routers and self.config.router_aux_loss_coef:
            aux = self._aux_loss(out.routed, out.keep)
            if loss is not None:
                share = _share(labels, kwargs.get("num_items_in_batch"))
                loss = loss + (self.config.router_aux_loss_coef * share * aux).to(loss.device)
        shared = {"loss": loss, "logits": logits, FIELD: getattr(out, FIELD), "hidden_states": out.hidden_states}
        routers = {"aux_loss": aux, "router_logits": out.router_logits if show_routers else None} if out.routed else {}
        if not _said(return_dict, self.config.return_dict):  # in this order, so that a loss or the logits come first
            return tuple(value for value in (shared | routers).values() if value is not None)
        return MoeCausalLMOutputWithPast(**shared, **routers) if out.routed else CausalLMOutputWithPast(**shared)

    def _head(self, x: torch.Tensor) -> torch.Tensor:
        """Logits; in float32 or wider where the residual stream is."""
        if self.config.dtype_policy == "layered_safe":
            weight, bias = (None if w is None else w.to(x.dtype) for w in (self.lm_head.weight, self.lm_head.bias))
            with torch.autocast(x.device.type, enabled=False):
                logits = F.linear(x, weight, bias)
        else:
            logits = self.lm_head(x)
        cap = self.config.final_logit_softcapping
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def _aux_loss(self, routed: tuple, keep: torch.Tensor | None) -> torch.Tensor:
        layers, records = (list(x) for x in zip(*routed, strict=True))
        return type(layers[0]).aux_loss(layers, records, keep, self.config.router_aux_loss_coef)


def _said(asked: bool | None, otherwise: bool | None) -> bool:
    return bool(otherwise if asked is None else asked)


def _share(labels: torch.Tensor, items) -> torch.Tensor | float:
    """The share of the targets of an optimizer step that a call has, so that accumulated calls add up to one."""
    return 1.0 if items is None else (labels[:, 1:] != -100).sum() / items
