"""Mixtures of experts and their routers against transformers' own, same weights, gradients included."""

from types import SimpleNamespace

import pytest
import torch
from transformers import DeepseekV2Config, DeepseekV3Config, MixtralConfig
from transformers.models.deepseek_v2 import modeling_deepseek_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4HashRouter
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

from eulerstack.modeling.context import Context
from eulerstack.modeling.ffn_moe import FFN
from eulerstack.modeling.op_routing import hash_experts

OFF = {"enabled": False, "update_rate": 1e-3, "target_imbalance": 0.0}
ON = OFF | {"enabled": True}
HASH = {"type": "hash", "hash_salt": 982451653}
PLAIN = {"affinity": "softmax", "routed_scale": 1.0, "bias_correction": OFF, "shared_experts": 0}


@pytest.fixture
def moe(options):
    def made(dtype=torch.float64, groups=None, limit=None, **changes):
        torch.manual_seed(0)
        balance = {"sequence_aux_coef": 0.0, "groups": groups, "group_limit": limit}
        values = options("ffn_moe") | PLAIN | {"balance": balance} | changes
        layer = FFN(SimpleNamespace(hidden_size=14, dtype_policy="uniform"), 0, **values)
        for p in layer.parameters():
            torch.nn.init.normal_(p, 0.0, 0.5)
        return layer.to(dtype)

    return made


def context(b, t, input_ids=None):
    return Context(positions=torch.arange(t).expand(b, t), input_ids=input_ids)


@pytest.fixture
def in_float64(monkeypatch):
    """DeepSeek's routers compute in torch.float32 by name; here that name means float64."""

    class Wide:
        float32 = torch.float64

        def __getattr__(self, name):
            return getattr(torch, name)

    for module in (modeling_deepseek_v2, modeling_deepseek_v3):
        monkeypatch.setattr(module, "torch", Wide())


def gradients_of(weights, selected, experts, leaves):
    """Gradients of a weighted sum that knows each weight by its expert, whatever the order."""
    factors = torch.linspace(-1, 2, experts, dtype=weights.dtype)[selected]
    return torch.autograd.grad((weights * factors).sum(), leaves)


def same_choice(ours, x, theirs):
    """Equal experts, weights and gradients of our router on `x` [1, T, D] and theirs on it flat."""
    experts = len(ours.weight)
    weights, record = ours(x, context(*x.shape[:2]))
    _, their_weights, their_selected = theirs(x[0])
    order, their_order = record.selected[0].argsort(), their_selected.argsort()
    assert torch.equal(record.selected[0].gather(-1, order), their_selected.gather(-1, their_order))
    torch.testing.assert_close(weights[0].gather(-1, order), their_weights.gather(-1, their_order), rtol=1e-12, atol=0)
    got = gradients_of(weights[0], record.selected[0], experts, [x, ours.weight])
    want = gradients_of(their_weights, their_selected, experts, [x, theirs.weight])
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("groups", "limit", "top_k"), [(3, 2, 5), (3, 1, 4), (6, 4, 3), (2, 2, 7)])
@pytest.mark.parametrize("normalised", [True, False])
def test_groups_of_a_biased_router_are_deepseek_v3s(in_float64, moe, groups, limit, top_k, normalised):
    config = DeepseekV3Config(
        hidden_size=14, n_routed_experts=12, num_experts_per_tok=top_k, n_group=groups, topk_group=limit,
        routed_scaling_factor=2.5, norm_topk_prob=normalised,
    )  # fmt: skip
    options = {"affinity": "sigmoid", "normalize_top_k": normalised, "routed_scale": 2.5, "bias_correction": ON}
    ours = moe(experts=12, top_k=top_k, groups=groups, limit=limit, **options).router
    ours.correction_bias += torch.randn(12) / 3
    theirs = modeling_deepseek_v3.DeepseekV3TopkRouter(config).double()
    theirs.load_state_dict({"weight": ours.weight.data, "e_score_correction_bias": ours.correction_bias})
    x = torch.randn(1, 301, 14, dtype=torch.float64, requires_grad=True)
    same_choice(ours, x, theirs)
    free = moe(experts=12, top_k=top_k, **options).router
    free.correction_bias += ours.correction_bias
    limited = (free(x, context(1, 301))[1].selected != ours(x, context(1, 301))[1].selected).any()
    assert limited == (limit < groups)


@pytest.mark.parametrize(("groups", "limit", "top_k"), [(4, 2, 5), (3, 1, 3), (12, 6, 2)])
def test_groups_of_a_plain_router_are_deepseek_v2s(in_float64, moe, groups, limit, top_k):
    config = DeepseekV2Config(
        hidden_size=14, n_routed_experts=12, num_experts_per_tok=top_k, n_group=groups, topk_group=limit,
        routed_scaling_factor=16.0, topk_method="group_limited_greedy", norm_topk_prob=False, num_attention_heads=2,
    )  # fmt: skip
    options = {"groups": groups, "limit": limit, "normalize_top_k": False, "routed_scale": 16.0}
    ours = moe(experts=12, top_k=top_k, **options).router
    theirs = modeling_deepseek_v2.DeepseekV2TopkRouter(config).double()
    theirs.load_state_dict({"weight": ours.weight.data})
    same_choice(ours, torch.randn(1, 301, 14, dtype=torch.float64, requires_grad=True), theirs)


def test_a_hash_router_is_deepseek_v4s_with_our_hash_as_its_table(moe):
    ids = torch.randint(0, 67, (1, 301))
    for kind, theirs_kind in (("sigmoid", "sigmoid"), ("sqrt_softplus", "sqrtsoftplus")):
        config = SimpleNamespace(
            num_experts_per_tok=3, num_local_experts=7, hidden_size=14, scoring_func=theirs_kind,
            routed_scaling_factor=1.5, vocab_size=67,
        )  # fmt: skip
        ours = moe(experts=7, top_k=3, affinity=kind, routed_scale=1.5, routing=HASH).router
        theirs = DeepseekV4HashRouter(config).double()
        theirs.load_state_dict({"weight": ours.weight.data, "tid2eid": hash_experts(torch.arange(67), 982451653, 7, 3)})
        x = torch.randn(1, 301, 14, dtype=torch.float64, requires_grad=True)
        weights, record = ours(x, context(1, 301, input_ids=ids))
        _, want, selected = theirs(x, ids)
        assert torch.equal(record.selected[0], selected)
        torch.testing.assert_close(weights[0], want, rtol=1e-9, atol=0)
        got, wanted = (gradients_of(w, selected, 7, [x, m.weight]) for w, m in ((weights[0], ours), (want, theirs)))
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(1, 7, 3), (13, 7, 3), (13, 8, 1), (13, 3, 3)])
def test_equals_transformers_mixtral_block(moe, tokens, experts, top_k):
    config = MixtralConfig(hidden_size=14, intermediate_size=11, num_local_experts=experts, num_experts_per_tok=top_k)
    theirs, ours = MixtralSparseMoeBlock(config), moe(torch.float32, experts=experts, top_k=top_k)
    weights = {"gate.weight": "router.weight", "experts.gate_up_proj": None, "experts.down_proj": None}
    theirs.load_state_dict({k: ours.state_dict()[v or k] for k, v in weights.items()})
    x = torch.randn(2, tokens, 14)
    for got, want in zip(_forward_backward(ours, x), _forward_backward(theirs, x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def _forward_backward(module, x):
    x = x.clone().requires_grad_(True)
    y = module(x, context(*x.shape[:2]))[0] if isinstance(module, FFN) else module(x)
    y.square().sum().backward()
    found = {n.replace("gate.weight", "router.weight"): p.grad for n, p in module.named_parameters()}
    return [y, x.grad, *(found[n] for n in ("router.weight", "experts.gate_up_proj", "experts.down_proj"))]


def same_as_deepseek(ours, theirs):
    """Equal outputs and gradients with the same weights, in training and in evaluation."""
    names = {"router.weight": "gate.weight", "router.correction_bias": "gate.e_score_correction_bias"}
    renamed = {k: names.get(k, k.replace("shared.", "shared_experts.")) for k in ours.state_dict()}
    theirs.double().load_state_dict({renamed[k]: v for k, v in ours.state_dict().items()})
    x = torch.randn(2, 9, 14, dtype=torch.float64, requires_grad=True)
    got, want = ours(x, context(2, 9))[0], theirs(x)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(ours.eval()(x, context(2, 9))[0], want, rtol=1e-10, atol=1e-10)
    factors, found = torch.randn_like(got), dict(theirs.named_parameters())
    mine = torch.autograd.grad((got * factors).sum(), [x, *ours.parameters()])
    yours = torch.autograd.grad((want * factors).sum(), [x, *(found[renamed[n]] for n, _ in ours.named_parameters())])
    for a, b in zip(mine, yours, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


SHARED = {"shared_experts": 2, "shared_d_ff": 11}


@pytest.mark.parametrize(("groups", "limit"), [(1, 1), (3, 2), (2, 1)])
@pytest.mark.parametrize("normalised", [True, False])
def test_equals_transformers_deepseek_v3_block(in_float64, moe, groups, limit, normalised):
    config = DeepseekV3Config(
        hidden_size=14, moe_intermediate_size=11, n_routed_experts=6, num_experts_per_tok=3, n_shared_experts=2,
        n_group=groups, topk_group=limit, routed_scaling_factor=2.5, norm_topk_prob=normalised,
    )  # fmt: skip
    options = {"affinity": "sigmoid", "experts": 6, "top_k": 3, "routed_scale": 2.5, "bias_correction": ON}
    ours = moe(normalize_top_k=normalised, groups=groups, limit=limit, **options, **SHARED)
    ours.router.correction_bias += torch.randn(6)
    same_as_deepseek(ours, modeling_deepseek_v3.DeepseekV3MoE(config))


@pytest.mark.parametrize("limited", [False, True])
def test_equals_transformers_deepseek_v2_block(in_float64, moe, limited):
    config = DeepseekV2Config(
        hidden_size=14, moe_intermediate_size=11, n_routed_experts=6, num_experts_per_tok=3, n_shared_experts=2,
        n_group=3, topk_group=2, routed_scaling_factor=16.0, norm_topk_prob=False, num_attention_heads=2,
        topk_method="group_limited_greedy" if limited else "greedy",
    )  # fmt: skip
    groups = {"groups": 3, "limit": 2} if limited else {}
    ours = moe(experts=6, top_k=3, normalize_top_k=False, routed_scale=16.0, **groups, **SHARED)
    same_as_deepseek(ours, modeling_deepseek_v2.DeepseekV2Moe(config))
