"""What keeps the experts of a mixture evenly used: the auxiliary losses, from what the routers decided.

B batch, T tokens, E experts, K top_k, S documents of a row.
"""

from dataclasses import dataclass

import torch

from .op_precision import wide
from .op_routing import affinity


@dataclass(frozen=True)
class RouterRecord:
    """What one router decided in one forward pass: enough for the auxiliary losses and the correction bias.

    The padding and the documents are those of the tokens that this router saw, which may be some of the call's only.
    """

    logits: torch.Tensor  # [B, T, E]
    selected: torch.Tensor  # [B, T, K] int
    keep: torch.Tensor | None = None  # [B, T] bool, False on padding; None: every token is real
    documents: torch.Tensor | None = None  # [B, T] int, number of the document in its row; None: one in each


def count(selected: torch.Tensor, experts: int, keep: torch.Tensor | None = None) -> torch.Tensor:
    """How many assignments each expert got, `[..., K] -> [E]` int; `keep` `[...]` leaves padding out."""
    counted = torch.ones_like(selected) if keep is None else keep.unsqueeze(-1).expand_as(selected).long()
    return torch.zeros(experts, dtype=torch.long, device=selected.device).scatter_add_(
        0, selected.flatten(), counted.flatten()
    )


def balance_loss(records: list[RouterRecord], kind: str) -> torch.Tensor:
    """E * sum_e f_e P_e over the tokens of all layers given, a scalar; K when the load is even.

    f_e is the share of tokens that chose expert e and P_e its mean probability (Switch Transformers, equations 4 to
    6, as Mixtral counts them: K assignments a token, layers concatenated). The probabilities are the affinities over
    their sum (DeepSeek-V3, equation 19), which changes nothing for softmax. Padding does not count.
    """
    record = _together(records)
    experts, rows = record.logits.shape[-1], _tokens(record)
    mass = _real(_shares(record.logits, kind), record.keep).sum((0, 1))
    load = count(record.selected, experts, record.keep).to(mass.dtype)
    return experts * (load / rows * (mass / rows)).sum()


def sequence_loss(record: RouterRecord, kind: str) -> torch.Tensor:
    """sum_e f_e P_e of each document, averaged over the tokens of one layer, a scalar; 1 when every load is even.

    DeepSeek-V3, equations 17 to 20: over the T tokens of a document, f_e = E / (K T) times how often e is among the K
    largest affinities, whatever a bias or a group limit made of them, and P_e the mean share of e in the affinities. A
    document weighs as much as it has tokens, so rows of equal length are averaged as there. Padding does not count.
    """
    experts, top_k = record.logits.shape[-1], record.selected.shape[-1]
    shares = _shares(record.logits, kind)
    chosen = torch.zeros_like(shares).scatter_(-1, shares.detach().topk(top_k).indices, 1.0)
    length, load, mass = (_by_document(x, record) for x in (torch.ones_like(shares[..., :1]), chosen, shares))
    each = experts / top_k * (load * mass / length.clamp(min=1)).sum(-1)  # times the length
    return each.sum() / length.sum().clamp(min=1)


def z_loss(records: list[RouterRecord]) -> torch.Tensor:
    """Mean over the tokens of all layers given of logsumexp(logits)^2 (Zoph et al. 2022, ST-MoE, equation 5)."""
    record = _together(records)
    square = wide(record.logits).logsumexp(-1, keepdim=True).square()
    return _real(square, record.keep).sum() / _tokens(record)


def _together(records: list[RouterRecord]) -> RouterRecord:
    """The tokens of all layers as one row, on the device of the first."""
    if len(records) == 1:
        return records[0]
    device, keep = records[0].logits.device, None
    if any(record.keep is not None for record in records):
        keep = [r.logits.new_ones(r.logits.shape[:-1]).bool() if r.keep is None else r.keep for r in records]
    logits, selected = [r.logits for r in records], [r.selected for r in records]
    rows = [None if x is None else torch.cat([t.flatten(0, 1).to(device) for t in x]) for x in (logits, selected, keep)]
    return RouterRecord(*(None if x is None else x[None] for x in rows))


def _shares(logits: torch.Tensor, kind: str) -> torch.Tensor:
    """Affinities over their sum, which is 1 as it is for softmax."""
    scores = affinity(logits, kind)
    return scores if kind == "softmax" else scores / (scores.sum(-1, keepdim=True) + 1e-20)


def _real(values: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
    """`values` [B, T, X] with zeros on padding."""
    return values if keep is None else values.masked_fill(~keep.unsqueeze(-1), 0.0)


def _by_document(values: torch.Tensor, record: RouterRecord) -> torch.Tensor:
    """Sums over the real tokens of each document, `[B, T, X] -> [B, S, X]`."""
    values, number = _real(values, record.keep), record.documents
    if number is None:
        return values.sum(1, keepdim=True)
    sums = values.new_zeros(len(values), int(number.max()) + 1, values.shape[-1])
    return sums.scatter_add(1, number.unsqueeze(-1).expand_as(values), values)


def _tokens(record: RouterRecord) -> torch.Tensor | int:
    """Real tokens, at least one."""
    return record.logits.shape[:-1].numel() if record.keep is None else record.keep.sum().clamp(min=1)
