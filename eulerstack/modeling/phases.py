"""Labels and loss weights of a text in phases: what `loss_weight` of an execution mode means in training.

A phase ends after a transition token, or after a given number of tokens; the last one goes on to the end of the text.
B batch, T tokens, N phases.
"""

import torch

from .op_loss import IGNORED


def phase_labels(
    input_ids: torch.LongTensor,
    modes: list[dict],
    transition: dict | None = None,
    *,
    lengths: torch.Tensor | None = None,
    prompt_lengths: torch.Tensor | int = 0,
    attention_mask: torch.Tensor | None = None,
) -> dict[str, torch.Tensor]:
    """`labels` [B, T], -100 on the prompt, on padding and where nothing is learned, and `loss_weights` [B, T].

    `prompt_lengths` [B] or one number are the real tokens before the first phase, `lengths` [B, N] or [B, N - 1] the
    tokens of each phase, by default up to and including each token whose id is `transition["token_id"]`.
    `attention_mask` [B, T] is zero on padding.

    Raises ValueError if there are no phases, or nothing that says where they end.
    """
    number = phase_numbers(
        input_ids,
        modes,
        transition,
        lengths=lengths,
        prompt_lengths=prompt_lengths,
        attention_mask=attention_mask,
    )
    weight = torch.tensor([mode["loss_weight"] for mode in modes] + [0.0], device=input_ids.device)
    weights = weight[number]  # -1, no phase, is the last
    return {"labels": input_ids.masked_fill(weights == 0, IGNORED), "loss_weights": weights}


def phase_numbers(
    input_ids: torch.LongTensor, modes: list[dict], transition: dict | None, *, lengths, prompt_lengths, attention_mask
) -> torch.Tensor:
    """The phase of each token from 0 on, -1 on prompt and padding; [B, T]. Arguments and errors of `phase_labels`."""
    if not modes:
        raise ValueError("this model has no execution_modes, so a text has no phases")
    keep = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
    place = keep.long().cumsum(1) - 1 - torch.as_tensor(prompt_lengths, device=input_ids.device).reshape(-1, 1)
    inside = keep & (place >= 0)
    if lengths is not None:
        ends = lengths.to(input_ids.device).long().cumsum(1)
        number = (place[:, :, None] >= ends[:, None]).sum(2)
    elif transition is None or transition.get("token_id") is None:
        raise ValueError("no transition token ends a phase here: give the lengths of the phases")
    else:
        ended = (inside & (input_ids == transition["token_id"])).long()
        number = ended.cumsum(1) - ended
    return number.clamp(max=len(modes) - 1).masked_fill(~inside, -1)
