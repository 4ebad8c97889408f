"""Multi-token prediction against its equations written out, one place at a time; then what it must leave alone."""

import pytest
import torch
from torch.nn import functional as F

LENGTH = 11


def mtp(n=2, layers=1, kind="kind0", weight=0.3, **changes) -> dict:
    options = {"n_predict": n, "head_layers": layers, "kind": kind, "train_loss_weight": weight}
    return {"head_type": "causal_lm_mtp", "mtp": options} | changes


@pytest.fixture
def made(payload, block, build):
    """`made(*blocks, **changes of mtp)`: a model in float64 that trains."""

    def model(*blocks, **changes):
        return build(payload(*(blocks or [block()]), **mtp(**changes)), torch.float64).train()

    return model


@pytest.fixture
def ids():
    return torch.randint(0, 67, (3, LENGTH), generator=torch.Generator().manual_seed(5))


def plain(model, ids, **kwargs):
    """The loss without the extra heads."""
    return model.eval()(input_ids=ids, labels=ids, **kwargs).loss


def extra(model, ids, labels=None, **kwargs):
    """The loss of the extra heads alone."""
    labels = ids if labels is None else labels
    with torch.no_grad():
        out = model.model(input_ids=ids, use_cache=False, return_dict=True, **kwargs)
        return model._extra_loss(out, ids, None, labels, None, {})[0]


def rms(x, weight, eps=1e-5):
    return weight * x / (x.square().mean() + eps).sqrt()


def by_hand(model, ids, labels):
    """The mean over modules of the mean cross entropy, for layers of a gated MLP alone, whose places do not meet."""
    table = model.model.embed_tokens.weight
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    means = []
    h = {(b, i): hidden[b, i] for b in range(len(ids)) for i in range(LENGTH)}
    for k, head in enumerate(model.mtp.heads, 1):
        losses, own = [], {}
        for (b, i), before in h.items():
            if i + k >= LENGTH:
                continue
            pair = rms(before, head.hidden_norm.weight), rms(table[ids[b, i + k]], head.token_norm.weight)
            x = head.proj.weight @ torch.cat(pair)
            for layer in head.layers:
                n, ffn = rms(x, layer.ffn_norm.weight), layer.ffn
                x = x + ffn.down_proj.weight @ (F.silu(ffn.gate_proj.weight @ n) * (ffn.up_proj.weight @ n))
            own[b, i] = rms(x, head.norm.weight)
            if i + k + 1 < LENGTH and labels[b, i + k + 1] != -100:
                losses.append(-(table @ own[b, i]).log_softmax(0)[labels[b, i + k + 1]])
        means.append(torch.stack(losses).mean())
        h = own
    return torch.stack(means).mean()


@pytest.mark.parametrize(("n", "layers"), [(1, 1), (3, 2)])
def test_the_loss_is_that_of_the_equations(made, block, ids, n, layers):
    model = made(block(mixer="none"), n=n, layers=layers, weight=0.7)
    with torch.no_grad():
        for name, parameter in model.mtp.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5)
    labels = ids.clone()
    labels[0, :4] = labels[2, 7] = -100
    with torch.no_grad():
        assert torch.allclose(extra(model, ids, labels), 0.7 * by_hand(model, ids, labels), rtol=1e-12)


def test_the_loss_of_training_is_both(made, ids):
    model = made()
    with torch.no_grad():
        both = model(input_ids=ids, labels=ids).loss
        assert both.item() == pytest.approx((plain(model, ids) + extra(model, ids)).item(), rel=1e-6)


def test_the_gradient_is_that_of_the_equations(made, block, ids):
    model = made(block(mixer="none"), weight=1.0)
    names = ["mtp.heads.0.proj.weight", "mtp.heads.1.token_norm.weight", "model.embed_tokens.weight"]
    parameters = [model.get_parameter(name) for name in names]
    out = model.model(input_ids=ids, use_cache=False, return_dict=True)
    got = torch.autograd.grad(model._extra_loss(out, ids, None, ids, None, {})[0], parameters)
    for a, b in zip(got, torch.autograd.grad(by_hand(model, ids, ids), parameters), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mixer", ["attention", "mamba1", "mamba2"])
def test_every_parameter_gets_a_gradient(made, block, ids, mixer):
    model = made(block(mixer), layers=2)
    model(input_ids=ids, labels=ids).loss.backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    assert all(p.grad.abs().max() > 0 for p in model.mtp.parameters())


def test_nothing_of_it_runs_without_labels_or_in_evaluation(made, ids):
    model = made()
    calls = []
    model.mtp.register_forward_hook(lambda *_: calls.append(1))
    model(input_ids=ids)
    assert not calls
    assert model.eval()(input_ids=ids, labels=ids).loss.item() == pytest.approx(
        F.cross_entropy(model(input_ids=ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).item(), rel=1e-6
    )
    assert not calls
    model.train()(input_ids=ids, labels=ids)
    assert calls


@pytest.mark.parametrize("mixer", ["attention", "mamba1", "mamba2"])
def test_padding_does_not_count(made, block, ids, mixer):
    model = made(block(mixer), n=2)
    rows = [ids[:1, :7], ids[1:2], ids[2:, :2]]
    padded, mask = torch.zeros_like(ids), torch.zeros_like(ids)
    for i, row in enumerate(rows):
        left = i == 0
        where = slice(LENGTH - row.shape[1], None) if left else slice(row.shape[1])
        padded[i, where], mask[i, where] = row[0], 1
    got = extra(model, padded, padded.masked_fill(mask == 0, -100), attention_mask=mask)
    assert got.item() == pytest.approx(_pooled(model, rows), rel=1e-9)


@pytest.mark.parametrize("mixer", ["attention", "mamba1", "mamba2"])
def test_no_target_lies_in_another_document(made, block, ids, mixer):
    model = made(block(mixer), n=2)
    places = torch.cat([torch.arange(5), torch.arange(1), torch.arange(5)])[None]
    rows = [ids[:1, :5], ids[:1, 5:6], ids[:1, 6:]]
    got = extra(model, ids[:1], position_ids=places)
    assert got.item() == pytest.approx(_pooled(model, rows), rel=1e-9)
    assert got.item() != pytest.approx(extra(model, ids[:1]).item(), rel=1e-3)
    numbers = torch.tensor([[0] * 5 + [1] + [2] * 5])
    assert extra(model, ids[:1], seq_idx=numbers).item() == pytest.approx(got.item(), rel=1e-12)


def _pooled(model, rows) -> float:
    """The loss of texts read alone, each module's mean taken over the targets of all."""
    total, many = 0.0, len(model.mtp.heads)
    for k in range(1, many + 1):
        losses = [_of_module(model, row, k) for row in rows if row.shape[1] > k + 1]
        total += torch.cat(losses).mean().item()
    return model.mtp.weight / many * total


@torch.no_grad()
def _of_module(model, row, k: int) -> torch.Tensor:
    """The cross entropies of module k on one text alone; it goes through the modules as decoding does."""
    h, n = model.model(input_ids=row, use_cache=False).last_hidden_state, row.shape[1]
    for j in range(1, k + 1):
        head, tokens = model.mtp.heads[j - 1], row[:, j:]
        keep = torch.ones_like(tokens)
        h = head.go_on(h[:, : n - j], model.model.embed_tokens(tokens), tokens, keep, head.new_cache())
    logits = model._head(h[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), row[0, k + 1 :], reduction="none")


def test_calls_of_an_accumulated_step_add_up(made, ids):
    model, items = made(), 3 * (LENGTH - 1)
    with torch.no_grad():
        whole = model(input_ids=ids, labels=ids, num_items_in_batch=items).loss
        parts = [model(input_ids=row[None], labels=row[None], num_items_in_batch=items).loss for row in ids]
    assert sum(parts).item() == pytest.approx(whole.item(), rel=1e-6)
    sums = extra(model, ids) / 0.3 * 2  # of the two means
    assert whole.item() - model.eval()(
        input_ids=ids, labels=ids, num_items_in_batch=items
    ).loss.item() == pytest.approx(0.15 * _sum_over(model, ids) / items, rel=1e-5)
    assert sums > 0


def _sum_over(model, ids) -> float:
    rows = [row[None] for row in ids]
    return sum(torch.cat([_of_module(model, row, k) for row in rows]).sum().item() for k in (1, 2))


def test_weights_of_labels_count_here_too(made, ids):
    model = made(weight=1.0, n=1)
    weights = torch.zeros(ids.shape)
    weights[:, 6:] = 2.0
    out = model.model(input_ids=ids, use_cache=False, return_dict=True)
    got = model._extra_loss(out, ids, None, ids, weights, {})[0]
    assert torch.allclose(got, extra(model, ids, ids.masked_fill(weights == 0, -100)), rtol=1e-12)


def test_embeddings_do_as_well_as_ids(made, ids):
    model = made()
    embeds = model.model.embed_tokens(ids)
    a, b = model(input_ids=ids, labels=ids).loss, model(inputs_embeds=embeds, labels=ids).loss
    assert a.item() == pytest.approx(b.item(), rel=1e-9)


def test_checkpointed_layers_have_the_same_gradients(made, ids):
    model = made()
    model(input_ids=ids, labels=ids).loss.backward()
    want = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable()
    model(input_ids=ids, labels=ids).loss.backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, want[name], rtol=1e-9, atol=1e-12), name


def test_experts_of_a_module_are_kept_in_balance(payload, block, build, ids):
    routed = block(ffn="moe")
    routed["ffn"] |= {"bias_correction": {"enabled": True, "update_rate": 0.5, "target_imbalance": 0.0}}
    routed["ffn"] |= {"load_balance_coef": 0.01}
    config = payload(block(), routed, pattern=["kind0"], **mtp(kind="kind1"))
    model = build(config | {"output_router_logits": True}, torch.float64).train()
    bias = model.mtp.heads[1].layers[0].ffn.router.correction_bias
    out = model(input_ids=ids, labels=ids)
    out.aux_loss.backward()
    assert model.mtp.heads[0].layers[0].ffn.router.weight.grad.abs().max() > 0
    assert bias.abs().max() > 0
    assert model.eval()(input_ids=ids, labels=ids).get("aux_loss") is None


def test_a_short_text_has_fewer_modules(made, ids):
    model = made(n=3)
    out = model(input_ids=ids[:, :2], labels=ids[:, :2])
    assert torch.isfinite(out.loss)
    out.loss.backward()
    assert all(p.grad is not None for p in model.parameters())
    assert out.loss.item() == pytest.approx(plain(model, ids[:, :2]).item(), rel=1e-6)


@pytest.mark.parametrize("policy", ["uniform", "layered_safe"])
def test_half_precision(payload, block, build, ids, policy):
    model = build(payload(block(), dtype_policy=policy, **mtp()), torch.bfloat16).train()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    assert loss.dtype == torch.float32
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
