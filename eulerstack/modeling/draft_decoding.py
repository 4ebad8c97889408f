"""Greedy decoding with drafts: the extra prediction heads propose tokens, one pass of the decoder checks them all.

Reference: Leviathan et al. 2023, Fast Inference from Transformers via Speculative Decoding, for greedy choice; drafts
by extra heads as in DeepSeek-V3, section 2.2. A token is taken only if the decoder itself chooses it, so the text is
that of plain decoding. A batch moves on by what all its unfinished rows accept.

A cache that cannot give tokens back (recurrences, windows) is put back to before the pass when a draft fails, and the
tokens that held are read again with the next drafts; after a few such passes once without drafts, to catch up.

B batch, L tokens of the text so far, T tokens of a pass, D model width, n heads.
"""

import torch

from .cache import FIELD

CATCH_UP = 8  # tokens that are read again in a pass before one without drafts takes them into the cache


@torch.no_grad()
def decode_with_drafts(
    model, input_ids, logits_processor, stopping_criteria, generation_config, streamer=None, **model_kwargs
) -> torch.LongTensor:
    """The text [B, L] after greedy decoding; arguments as transformers gives them to a decoding method."""
    text = Text(model, input_ids, model_kwargs.get("attention_mask"))
    drafter = Drafter(model, text)
    pad = generation_config._pad_token_tensor
    unfinished = torch.ones(len(input_ids), dtype=torch.bool, device=input_ids.device)
    drafts = input_ids[:, :0]
    while True:
        logits = text.read(drafts)
        for j in range(drafts.shape[1] + 1):
            scores = logits_processor(text.ids, logits[:, j].to(torch.float32, copy=True))
            token = scores.argmax(-1)
            if pad is not None:
                token = torch.where(unfinished, token, pad.to(token.device))
            text.append(token)
            if streamer is not None:
                streamer.put(token.cpu())
            unfinished = unfinished & ~stopping_criteria(text.ids, None)
            if not unfinished.any():
                if streamer is not None:
                    streamer.end()
                return text.ids
            if j < drafts.shape[1] and (token != drafts[:, j])[unfinished].any():
                break
        text.take(accepted=j, given=drafts.shape[1])
        room = generation_config.max_length - text.length - 1
        many = 0 if text.length - text.held > CATCH_UP else max(0, min(len(model.mtp.heads), room))
        drafts = drafter.propose(many) if many else input_ids[:, :0]


class Text:
    """The tokens so far, `ids` and `mask` [B, L], of which the decoder's cache holds the first `held`.

    `hidden` [B, T, D] are the decoder's outputs of the last pass, from the token `first` on.
    """

    def __init__(self, model, ids: torch.LongTensor, mask: torch.Tensor | None):
        self.model, self.ids = model, ids
        self.mask = torch.ones_like(ids) if mask is None else mask
        self.cache, self.held, self.first, self.hidden = None, 0, 0, None

    @property
    def length(self) -> int:
        return self.ids.shape[1]

    def append(self, token: torch.LongTensor) -> None:
        self.ids = torch.cat((self.ids, token[:, None]), 1)
        self.mask = torch.cat((self.mask, self.mask.new_ones(len(token), 1)), 1)

    def read(self, drafts: torch.LongTensor) -> torch.Tensor:
        """One pass over what the cache does not hold yet and `drafts` [B, n]: logits [B, n + 1, V] after the text and
        after each draft."""
        cache, self.first = self.cache, self.held
        self.before = None if cache is None else (list(cache.states), *cache.history())
        mask = torch.cat((self.mask, self.mask.new_ones(drafts.shape)), 1)
        out = self.model.model(
            input_ids=torch.cat((self.ids[:, self.held :], drafts), 1),
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            return_dict=True,
        )
        self.cache, self.hidden = getattr(out, FIELD), out.last_hidden_state
        return self.model._head(self.hidden[:, -drafts.shape[1] - 1 :])

    def take(self, accepted: int, given: int) -> None:
        """Keep in the cache what held of the last pass; the text has the `accepted` drafts and a token more by now."""
        if accepted < given and not self.cache.croppable:
            self.cache.advance(*self.before)
            return
        if accepted < given:
            self.cache.crop(accepted - given)
        self.held = self.length - 1


class Drafter:
    """The extra heads over a text, each with a cache of its own.

    Of L tokens the last is not read yet, so there are hidden states of the first L - 1. Head k reads at place i the
    token i + k: what it computes is final up to place L - 1 - k; later places need drafts and are forgotten again.
    """

    def __init__(self, model, text: Text):
        self.model, self.text, self.heads = model, text, model.mtp.heads
        self.caches = [head.new_cache() for head in self.heads]
        self.last: list[torch.Tensor | None] = [None] * len(self.heads)  # each head's last final output, [B, 1, D]

    def propose(self, many: int) -> torch.LongTensor:
        """`many` drafts [B, many] of the tokens after the text, the most likely by each head."""
        text, ids, last = self.text, self.text.ids, list(self.last)
        start = self.caches[0].seen
        x = text.hidden[:, start - text.first : text.length - 1 - text.first]
        for k in range(1, many + 1):
            before = self.caches[k - 1].seen
            if before < start:  # the head before it was further by one place
                x, start = torch.cat((last[k - 2], x), 1), before
            x = self._run(k, x, ids[:, start + k : text.length - 1 + k], start)
            ids = torch.cat((ids, self.model._head(x[:, -1:])[:, -1].argmax(-1, keepdim=True)), 1)
        return ids[:, text.length :]

    def _run(self, k: int, x: torch.Tensor, tokens: torch.LongTensor, start: int) -> torch.Tensor:
        """Head k over x [B, T, D], the places from `start` on; its cache keeps those that are final."""
        final, cache = max(0, self.text.length - k - start), self.caches[k - 1]
        outputs = []
        if final:
            outputs.append(self._pass(k, x[:, :final], tokens[:, :final], start))
            self.last[k - 1] = outputs[0][:, -1:]
        if final < x.shape[1]:
            state = (list(cache.states), *cache.history())
            outputs.append(self._pass(k, x[:, final:], tokens[:, final:], start + final))
            cache.advance(*state)
        return torch.cat(outputs, 1)

    def _pass(self, k: int, x: torch.Tensor, tokens: torch.LongTensor, start: int) -> torch.Tensor:
        keep = self.text.mask[:, start : start + x.shape[1]]
        return self.heads[k - 1].go_on(x, self.model.model.embed_tokens(tokens), tokens, keep, self.caches[k - 1])
