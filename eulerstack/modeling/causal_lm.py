"""The decoder with its language-model head, and the loss.

B batch, T tokens of a call, D model width, V vocabulary.
"""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F
from transformers import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast, MoeCausalLMOutputWithPast

from .cache import FIELD
from .configuration_eulerstack import EulerStackConfig
from .decoder import Decoder, said
from .op_linear import matrix_of
from .op_loss import IGNORED, Targets, token_loss
from .op_precision import own_precision, wide
from .phases import phase_labels
from .pretrained import EulerStackPreTrainedModel


class CausalLM(EulerStackPreTrainedModel, GenerationMixin):
    """The decoder with a linear head, and the loss; the entry file sets `backbone` to the Decoder with its parts."""

    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}
    backbone: ClassVar[type[Decoder]] = Decoder

    def __init__(self, config: EulerStackConfig):
        super().__init__(config)
        self.model = self.backbone(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.head_bias)
        self._is_stateful = self.model._is_stateful
        if config.head_type != "causal_lm":
            self.mtp = self.parts[f"head_{config.head_type}"](config, self.parts)
        if config.quantisation:
            self.parts["fake_quant"](self, config.quantisation)
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
        loss_weights: torch.Tensor | None = None,
        **kwargs,
    ) -> CausalLMOutputWithPast | MoeCausalLMOutputWithPast | tuple:
        """Arguments of Decoder.forward, and: `labels` [B, T] (-100 counts not), shifted here; `logits_to_keep`, the
        last so many places, or an index, whose logits are wanted (0: all); `loss_weights` [B, T], how much each label
        weighs (1 where None).

        The loss is the weighted mean of the cross entropy, in training plus that of the extra prediction heads, and,
        if router logits are on, plus `router_aux_loss_coef` times `aux_loss`. Where `num_items_in_batch` is given, it
        divides the weighted sum in place of the weights, and aux_loss counts by this call's share. Logits [B, T, V].
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
        records = out.records or ()
        if labels is not None:
            loss = self._loss(logits, labels, loss_weights, kwargs)
            if self.config.mtp and self.training:
                extra, found = self._extra_loss(out, input_ids, inputs_embeds, labels, loss_weights, kwargs)
                loss, records = loss + extra.to(loss.device), records + found
        show_routers = said(output_router_logits, self.config.output_router_logits)
        if records and show_routers and self.config.router_aux_loss_coef:
            aux = self._aux_loss(records)
            if loss is not None:
                share = _share(labels, kwargs.get("num_items_in_batch"))
                loss = loss + (self.config.router_aux_loss_coef * share * aux).to(loss.device)
        shared = {"loss": loss, "logits": logits, FIELD: getattr(out, FIELD), "hidden_states": out.hidden_states}
        routers = {"aux_loss": aux, "router_logits": out.router_logits if show_routers else None} if records else {}
        if not said(return_dict, self.config.return_dict):  # in this order, so that a loss or the logits come first
            return tuple(value for value in (shared | routers).values() if value is not None)
        return MoeCausalLMOutputWithPast(**shared, **routers) if records else CausalLMOutputWithPast(**shared)

    def _supports_default_dynamic_cache(self) -> bool:
        """Not for a model without attention: some versions make it a cache that cannot say how long it is."""
        recurrent = set(self.config.layer_types) == {"linear_attention"}
        return not recurrent and super()._supports_default_dynamic_cache()

    def _head(self, x: torch.Tensor) -> torch.Tensor:
        """Logits; where the residual stream is in float32 or wider, they are too. A head that is more than a matrix
        reads the dtype of the parameters there."""
        if self.config.dtype_policy != "layered_safe":
            logits = self.lm_head(x)
        elif (matrix := matrix_of(self.lm_head)) is None:
            logits = wide(self.lm_head(x.to(self.model.embed_tokens.weight.dtype)))
        else:
            weight, bias = (None if w is None else w.to(x.dtype) for w in (matrix, self.lm_head.bias))
            with own_precision(x.device):
                logits = F.linear(x, weight, bias)
        cap = self.config.final_logit_softcapping
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None, kwargs: dict):
        """The cross entropy of the next token; transformers' own where nothing is weighed."""
        if weights is None:
            return self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        items = kwargs.get("num_items_in_batch")
        return token_loss(logits[:, :-1], labels[:, 1:], weights[:, 1:], items)

    def _extra_loss(self, out, input_ids, inputs_embeds, labels, weights, kwargs: dict):
        """The loss of the extra prediction heads, and the records of their routers."""
        embeds, context = inputs_embeds, out.context
        if embeds is None:
            embeds = self.model.embed_tokens(input_ids)
        elif self.mtp.needs_ids and context.input_ids is None:
            context = replace(context, input_ids=self.model._nearest_ids(embeds))
        targets = Targets(labels, weights, self._head, kwargs.get("num_items_in_batch"))
        return self.mtp(out.last_hidden_state, embeds, context, targets)

    def phase_labels(self, input_ids: torch.LongTensor, **where) -> dict[str, torch.Tensor]:
        """`labels` and `loss_weights` for `forward`, by the phases of `config.execution_modes` (see phases.py)."""
        return phase_labels(input_ids, self.config.execution_modes, self.config.transition, **where)

    def save_pretrained(self, save_directory, *args, **kwargs):
        """As of transformers, and with `custom_generate/generate.py` where this model's directory has it."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if "recipe" in self.parts:
            file = Path(save_directory, "custom_generate", "generate.py")
            file.parent.mkdir(exist_ok=True)
            file.write_text(self.parts["recipe"].TEXT, encoding="utf-8")

    def _aux_loss(self, records: tuple) -> torch.Tensor:
        """The losses of all routers and gates of a pass, each kind by its own rule."""
        kinds = defaultdict(list)
        for _, module, record in records:
            kinds[type(module)].append((module, record))
        losses = []
        for kind, pairs in kinds.items():
            modules, records = (list(x) for x in zip(*pairs, strict=True))
            losses.append(kind.aux_loss(modules, records, self.config.router_aux_loss_coef))
        return sum(loss.to(losses[0].device) for loss in losses)


def _share(labels: torch.Tensor, items) -> torch.Tensor | float:
    """The share of the targets of an optimizer step that a call has, so that accumulated calls add up to one."""
    return 1.0 if items is None else (labels[:, 1:] != IGNORED).sum() / items
