"""Generation in phases: the execution modes of a model one after the other, and what of them the user sees.

A phase ends for a row after its transition token or when its budget is spent; where there is a transition token, the
last token of a spent budget becomes one, but for the last phase. The end-of-text token, a stopping criterion or the cap
on all new tokens end the row. A row whose phase has ended waits, as padding, until that phase has ended for all.

B batch, P tokens of the prompt, L tokens so far, padding of waiting rows included, V vocabulary.
"""

from dataclasses import dataclass

import torch
from transformers.generation import MaxLengthCriteria, StoppingCriteriaList
from transformers.utils import ModelOutput

from .cache import FIELD

OUTSIDE = -1  # the number of what is in no phase: the prompt, and padding


@dataclass
class PhasedOutput(ModelOutput):
    """`sequences` [B, P + n] are the prompt and what the user sees, `all_sequences` [B, P + m] the prompt and all that
    came, with the number of each token's phase in `phases` [B, P + m] (-1: prompt or padding); `names` are those of
    the phases. Rows are padded on the right.
    """

    sequences: torch.LongTensor | None = None
    all_sequences: torch.LongTensor | None = None
    phases: torch.LongTensor | None = None
    names: tuple[str, ...] | None = None


@torch.no_grad()
def decode_in_phases(
    model,
    input_ids,
    logits_processor,
    stopping_criteria,
    generation_config,
    streamer=None,
    return_phases=False,
    **model_kwargs,
) -> torch.LongTensor | PhasedOutput:
    """What the user sees, [B, P + n], or a PhasedOutput; the other arguments as transformers gives them.

    Raises ValueError for a prompt of embeddings or none, or a transition token without an id.
    """
    if not input_ids.shape[1]:
        raise ValueError("phases need a prompt of token ids")
    criteria = StoppingCriteriaList(c for c in stopping_criteria if not isinstance(c, MaxLengthCriteria))
    rows = Rows(model, input_ids, model_kwargs.get("attention_mask"), generation_config, logits_processor, criteria)
    modes = model.config.execution_modes
    for number, mode in enumerate(modes):
        if rows.done.all():
            break
        fresh = number == 0 or not modes[number - 1]["kv_share"]
        logits = rows.read_again() if fresh else rows.read(rows.last, ~rows.done)
        active = ~rows.done
        while active.any():
            token, ended = rows.choose(logits, active, number)
            if streamer is not None and mode["visible_to_user"] and active[0]:
                streamer.put(token.cpu())
            active = active & ~ended & ~rows.done
            if active.any():
                logits = rows.read(token, active)
    if streamer is not None:
        streamer.end()
    everything, numbers = rows.compact(rows.phase != OUTSIDE)
    seen, _ = rows.compact(rows.visible())
    if not (return_phases or generation_config.return_dict_in_generate):
        return seen
    names = tuple(mode["name"] for mode in modes)
    return PhasedOutput(sequences=seen, all_sequences=everything, phases=numbers, names=names)


class Rows:
    """A batch of texts: `ids` and `phase` [B, L], `last` the newest token of each row, `done` the rows at their end."""

    def __init__(self, model, ids, mask, options, processor, criteria):
        self.model, self.options, self.processor, self.criteria = model, options, processor, criteria
        self.modes, self.marker = model.config.execution_modes, marker_of(model.config.transition)
        self.prompt, self.ids, self.last = ids.shape[1], ids, ids[:, -1]
        self.prompt_mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        self.phase = torch.full_like(ids, OUTSIDE)
        self.used = torch.zeros_like(self.last)  # tokens of each row
        self.done = self.used.bool()
        pad = options._pad_token_tensor
        self.pad = torch.zeros_like(self.last) if pad is None else pad.to(ids.device).expand_as(self.last)
        self.cap = options.max_length - self.prompt

    def visible(self) -> torch.Tensor:
        """[B, L] bool: new tokens that the user sees."""
        shown = torch.tensor([mode["visible_to_user"] for mode in self.modes] + [False], device=self.ids.device)
        return shown[self.phase]

    def choose(self, logits: torch.Tensor, active: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The next token [B] of the active rows, taken into the text, and which of them it ends this phase for."""
        scores = self.processor(self.ids, logits.to(torch.float32, copy=True))
        token = torch.multinomial(scores.softmax(-1), 1)[:, 0] if self.options.do_sample else scores.argmax(-1)
        spent = (self.phase == number).sum(1) + 1 == self.modes[number]["max_tokens"]
        if self.marker is not None and number + 1 < len(self.modes):
            token = torch.where(spent, self.marker, token)
        token = torch.where(active, token, self.pad)
        self.ids = torch.cat((self.ids, token[:, None]), 1)
        self.phase = torch.cat((self.phase, torch.where(active, number, OUTSIDE)[:, None]), 1)
        self.last = torch.where(active, token, self.last)
        self.used = self.used + active.long()
        stopped = self.criteria(self.ids, None) if len(self.criteria) else torch.zeros_like(active)
        self.done = self.done | (active & (stopped.to(active.device) | (self.used >= self.cap)))
        return token, active & (spent if self.marker is None else spent | (token == self.marker))

    def read_again(self) -> torch.Tensor:
        """The logits after the prompt and what the user has seen, read without what else was generated; [B, V]."""
        ids, numbers = self.compact(self.visible())
        keep = torch.cat((self.prompt_mask, numbers[:, self.prompt :] != OUTSIDE), 1)
        self.cache, self.mask = None, self.prompt_mask[:, :0]
        return self._pass(ids, keep)

    def read(self, token: torch.LongTensor, active: torch.Tensor) -> torch.Tensor:
        """The logits [B, V] after one more token [B] of each active row; those of the others mean nothing."""
        return self._pass(token[:, None], active[:, None])

    def _pass(self, ids: torch.LongTensor, keep: torch.Tensor) -> torch.Tensor:
        self.mask = torch.cat((self.mask, keep), 1)
        out = self.model.model(
            input_ids=ids,
            attention_mask=self.mask.long(),
            past_key_values=self.cache,
            use_cache=True,
            return_dict=True,
        )
        self.cache = getattr(out, FIELD)
        place = torch.arange(keep.shape[1], device=ids.device)
        last = torch.where(keep, place, 0).amax(1)  # of the real tokens
        hidden = out.last_hidden_state[torch.arange(len(ids), device=ids.device), last]
        return self.model._head(hidden[:, None])[:, 0]

    def compact(self, chosen: torch.Tensor) -> tuple[torch.LongTensor, torch.LongTensor]:
        """The prompt, then the chosen tokens of each row without gaps; and their phases. Both [B, P + n]."""
        ids, phase, chosen = (t[:, self.prompt :] for t in (self.ids, self.phase, chosen))
        many = int(chosen.sum(1).max()) if chosen.shape[1] else 0
        order = torch.argsort((~chosen).long(), dim=1, stable=True)[:, :many]
        real = chosen.gather(1, order)
        ids = torch.where(real, ids.gather(1, order), self.pad[:, None])
        phase = torch.where(real, phase.gather(1, order), OUTSIDE)
        prompt = self.phase[:, : self.prompt]
        return torch.cat((self.ids[:, : self.prompt], ids), 1), torch.cat((prompt, phase), 1)


def marker_of(transition: dict | None) -> int | None:
    """The id of the transition token; None where budgets alone end phases. ValueError if it was never looked up."""
    if transition is None or transition["type"] != "special_token":
        return None
    if transition.get("token_id") is None:
        raise ValueError(f"config.transition names {transition['token']!r} but has no token_id: export the model again")
    return transition["token_id"]
