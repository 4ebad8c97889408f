"""Labels of a text in phases, by hand; and the loss they make of a model."""

import pytest
import torch
from torch.nn import functional as F

MODES = [
    {"name": name, "max_tokens": 9, "kv_share": True, "loss_weight": weight, "visible_to_user": True}
    for name, weight in (("plan", 0.5), ("think", 0.0), ("answer", 2.0))
]
MARK = 7
TRANSITION = {"type": "special_token", "token": "</x>", "token_id": MARK}
IDS = torch.tensor([[9, MARK, 1, 2, MARK, 3, MARK, 4, 5], [6, 1, MARK, MARK, 2, MARK, 8, 0, 0]])
MASK = torch.tensor([[1] * 9, [1] * 7 + [0] * 2])
WEIGHTS = torch.tensor([[0, 0, 0.5, 0.5, 0.5, 0, 0, 2, 2], [0, 0.5, 0.5, 0, 2, 2, 2, 0, 0]])


@pytest.fixture
def model(payload, block, build):
    return build(payload(block(), execution_modes=MODES, transition=TRANSITION), torch.float64)


def test_a_transition_token_ends_a_phase_and_the_last_goes_on(model):
    made = model.phase_labels(IDS, prompt_lengths=torch.tensor([2, 1]), attention_mask=MASK)
    assert torch.equal(made["loss_weights"], WEIGHTS)
    assert torch.equal(made["labels"], IDS.masked_fill(WEIGHTS == 0, -100))


def test_left_padding_and_one_prompt_length(model):
    ids, mask = IDS.flip(1), MASK.flip(1)
    made = model.phase_labels(ids, prompt_lengths=1, attention_mask=mask)
    assert made["loss_weights"][1].tolist() == [0, 0, 0, 0.5, 0, 0, 2, 2, 2]


@pytest.mark.parametrize("lengths", [[[3, 1, 5], [1, 2, 9]], [[3, 1], [1, 2]]])
def test_lengths_of_phases(model, lengths):
    made = model.phase_labels(IDS, lengths=torch.tensor(lengths), prompt_lengths=2, attention_mask=MASK)
    assert made["loss_weights"].tolist() == [[0, 0, 0.5, 0.5, 0.5, 0, 2, 2, 2], [0, 0, 0.5, 0, 0, 2, 2, 0, 0]]


def test_nothing_says_where_phases_end(model, payload, block, build):
    model.config.transition = {"type": "budget_exhausted", "token": None}
    with pytest.raises(ValueError, match="give the lengths"):
        model.phase_labels(IDS)
    with pytest.raises(ValueError, match="no execution_modes"):
        build(payload(block())).phase_labels(IDS)


def test_the_loss_weighs_each_phase(model):
    batch = model.phase_labels(IDS, prompt_lengths=torch.tensor([2, 1]), attention_mask=MASK)
    with torch.no_grad():
        out = model(input_ids=IDS, attention_mask=MASK, **batch)
    each = F.cross_entropy(out.logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten(), reduction="none").view(2, 8)
    weights = WEIGHTS[:, 1:].double()
    assert out.loss.item() == pytest.approx(((weights * each).sum() / weights.sum()).item(), rel=1e-6)


def test_equal_weights_are_the_plain_loss(model):
    with torch.no_grad():
        plain, weighed = (
            model(input_ids=IDS, labels=IDS, loss_weights=w).loss for w in (None, torch.full(IDS.shape, 3))
        )
    assert weighed.item() == pytest.approx(plain.item(), rel=1e-6)


def test_calls_of_an_accumulated_step_add_up(model):
    batch = model.phase_labels(IDS, prompt_lengths=torch.tensor([2, 1]), attention_mask=MASK) | {"input_ids": IDS}
    with torch.no_grad():
        whole = model(**batch, num_items_in_batch=13).loss
        parts = [model(**{k: v[i : i + 1] for k, v in batch.items()}, num_items_in_batch=13).loss for i in range(2)]
    assert sum(parts).item() == pytest.approx(whole.item(), rel=1e-6)
