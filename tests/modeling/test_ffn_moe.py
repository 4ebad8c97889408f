import copy
import math
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from eulerstack.modeling.context import Context
from eulerstack.modeling.ffn_moe import FFN
from eulerstack.modeling.op_balance import RouterRecord, sequence_loss
from eulerstack.modeling.op_routing import hash_experts

OFF = {"enabled": False, "update_rate": 1e-3, "target_imbalance": 0.0}
ON = OFF | {"enabled": True, "update_rate": 0.05}
LEARNED, HASH = {"type": "learned", "hash_salt": None}, {"type": "hash", "hash_salt": 11}
NOTHING = {"sequence_aux_coef": 0.0, "groups": None, "group_limit": None}
GROUPS = NOTHING | {"groups": 3, "group_limit": 2}
DEFAULTS = {
    "activation": "swiglu", "bias": False, "d_ff": 11, "experts": 5, "top_k": 2, "affinity": "softmax",
    "normalize_top_k": True, "routed_scale": 1.0, "shared_experts": 0, "shared_d_ff": 9, "z_loss": 0.0,
    "load_balance_coef": 0.01, "capacity_factor": 1.0, "capacity_drop_policy": "overflow", "router_bias": False,
    "router_init_std": None, "router_jitter": 0.0, "bias_correction": OFF, "routing": LEARNED, "balance": NOTHING,
}  # fmt: skip


def moe(d_model=14, dtype=torch.float32, **options):
    torch.manual_seed(0)
    made = FFN(SimpleNamespace(hidden_size=d_model, dtype_policy="uniform"), 0, **DEFAULTS | options)
    for p in made.parameters():
        torch.nn.init.normal_(p, 0.0, 0.5)
    return made.to(dtype)


def context(b, t, keep=None, starts=None):
    ids = torch.arange(b * t).view(b, t) * 17 % 23
    return Context(positions=torch.arange(t).expand(b, t), keep=keep, starts=starts, input_ids=ids)


GATED = {
    "swiglu": lambda gate, up: gate / (1 + (-gate).exp()) * up,
    "swiglu_clamped": lambda gate, up: (
        (up.clip(-7, 7) + 1) * gate.clip(max=7) / (1 + (-1.702 * gate.clip(max=7)).exp())
    ),
}


def naive(made, x, keep):
    """The same layer, one token and one expert at a time, straight from the formulas; `made` in float64."""
    options, router, experts = made.options, made.router, made.experts
    bias = torch.zeros(options["experts"]) if not options["bias_correction"]["enabled"] else router.correction_bias
    chosen = []  # for each token: [(expert, weight), ...], first choice first
    hashed = hash_experts(context(*x.shape[:2]).input_ids, 11, options["experts"], options["top_k"]).flatten(0, 1)
    for n, token in enumerate(x.flatten(0, 1)):
        h = router.weight @ token + (router.bias if options["router_bias"] else 0)
        s = {
            "softmax": lambda h: h.exp() / h.exp().sum(),
            "sigmoid": lambda h: 1 / (1 + (-h).exp()),
            "sqrt_softplus": lambda h: (1 + h.exp()).log().sqrt(),
        }[options["affinity"]](h)
        best = sorted(allowed(s + bias, options), key=lambda e: -(s[e] + bias[e]).item())[: options["top_k"]]
        best = hashed[n].tolist() if options["routing"] == HASH else best
        total = sum(s[e] for e in best) if options["normalize_top_k"] else 1
        chosen.append([(e, s[e] / total * options["routed_scale"]) for e in best])
    real = [True] * len(chosen) if keep is None else keep.flatten().tolist()
    capacity = math.inf
    if made.training and options["capacity_drop_policy"] != "overflow":
        capacity = math.ceil(options["capacity_factor"] * sum(real) * options["top_k"] / options["experts"])
    y, places = [torch.zeros_like(token) for token in x.flatten(0, 1)], [0] * options["experts"]
    for choice in range(options["top_k"]):
        for n, token in enumerate(x.flatten(0, 1)):
            e, weight = chosen[n][choice]
            places[e] += real[n]
            if capacity == math.inf or (real[n] and places[e] <= capacity):
                y[n] = y[n] + weight * expert(experts, e, token, options)
    y = torch.stack(y).view_as(x)
    return y if made.shared is None else y + made.shared(x, None)[0]


def allowed(scores, options):
    """The experts of the best groups: those with the highest sum of two where there is a bias, of one elsewhere."""
    groups, limit = options["balance"]["groups"], options["balance"]["group_limit"]
    members = torch.arange(options["experts"]).chunk(groups or 1)
    two = 2 if options["bias_correction"]["enabled"] else 1
    worth = [sum(sorted(scores[m].tolist())[-two:]) for m in members]
    best = sorted(range(len(members)), key=lambda g: -worth[g])[: limit or 1]
    return [e for g in best for e in members[g].tolist()]


def expert(experts, e, token, options):
    h = experts.gate_up_proj[e] @ token
    h = h if experts.gate_up_bias is None else h + experts.gate_up_bias[e]
    gate, up = h.chunk(2)
    y = experts.down_proj[e] @ GATED[options["activation"]](gate, up)
    return y if experts.down_bias is None else y + experts.down_bias[e]


@pytest.mark.parametrize("affinity", ["softmax", "sigmoid", "sqrt_softplus"])
@pytest.mark.parametrize("policy", ["overflow", "drop", "pad"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": True, "normalize_top_k": False, "routed_scale": 1.7},
        {"shared_experts": 2, "top_k": 3, "bias_correction": ON},
        {"top_k": 1, "capacity_factor": 0.5, "experts": 3},
        {"experts": 6, "balance": GROUPS, "top_k": 3},
        {"experts": 6, "balance": GROUPS, "bias_correction": ON},
        {"routing": HASH, "top_k": 3},
        {"router_bias": True, "activation": "swiglu_clamped", "bias": True, "shared_experts": 1},
        {"router_bias": True, "routing": HASH},
        {"router_bias": True, "experts": 6, "balance": GROUPS, "bias_correction": ON},
    ],
)
@pytest.mark.parametrize("padding", [False, True])
def test_equals_a_loop_over_tokens_and_experts(affinity, policy, options, padding):
    options = DEFAULTS | options | {"affinity": affinity, "capacity_drop_policy": policy}
    made = moe(dtype=torch.float64, **options).train()
    made.options = options
    if options["bias_correction"]["enabled"]:
        made.router.correction_bias += torch.linspace(-0.4, 0.4, options["experts"])
    x = torch.randn(3, 5, 14, dtype=torch.float64, requires_grad=True)
    keep = torch.rand(3, 5) > 0.3 if padding else None
    seen = torch.ones(3, 5, 1, dtype=torch.bool) if keep is None else keep[..., None]
    weights = torch.randn(3, 5, 14, dtype=torch.float64) * seen  # only real tokens' outputs mean anything
    leaves, results = [x, *made.parameters()], []
    for y in (made(x, context(3, 5, keep))[0], naive(made, x, keep)):
        grads = torch.autograd.grad((y * weights).sum(), leaves, allow_unused=True)
        results.append(
            (y * seen, *(torch.zeros_like(p) if g is None else g for p, g in zip(leaves, grads, strict=True)))
        )
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("masked", [False, True])
def test_aux_loss_is_mixtrals_over_all_layers(masked):
    torch.manual_seed(1)
    logits = [torch.randn(3, 7, 5) for _ in range(3)]
    keep = torch.rand(3, 7) > 0.4 if masked else None
    layers, records = [moe() for _ in logits], [RouterRecord(x, x.topk(2).indices, keep) for x in logits]
    want = load_balancing_loss_func(tuple(x.flatten(0, 1) for x in logits), 5, 2, keep)
    torch.testing.assert_close(FFN.aux_loss(layers, records, 0.01), want, rtol=1e-6, atol=0)


def test_aux_loss_adds_groups_by_their_coefficients():
    torch.manual_seed(1)
    kinds = [{}, {"experts": 4, "load_balance_coef": 0.03, "z_loss": 0.002}, {}, {"load_balance_coef": 0.0}]
    layers = [moe(**kind) for kind in kinds]
    logits = [torch.randn(2, 3, layer.router.experts) for layer in layers]
    records = [RouterRecord(x, x.topk(2).indices) for x in logits]
    both = load_balancing_loss_func((logits[0].flatten(0, 1), logits[2].flatten(0, 1)), 5, 2)
    alone = load_balancing_loss_func((logits[1].flatten(0, 1),), 4, 2)
    z = logits[1].logsumexp(-1).square().mean()
    want = 0.01 * both + 0.03 * alone + 0.002 * z
    torch.testing.assert_close(0.5 * FFN.aux_loss(layers, records, 0.5), want)
    assert FFN.aux_loss(layers, records, 0.0) == 0


def test_aux_loss_adds_the_sequence_loss_of_each_layer():
    torch.manual_seed(1)
    coefs = (0.3, 0.0, 0.02)
    layers = [moe(affinity="sigmoid", load_balance_coef=0.0, balance=NOTHING | {"sequence_aux_coef": c}) for c in coefs]
    starts = torch.tensor([[False, False, True, False], [False, True, False, False]])
    records = [layer(torch.randn(2, 4, 14), context(2, 4, starts=starts))[1] for layer in layers]
    want = sum(c * sequence_loss(record, "sigmoid") for c, record in zip(coefs, records, strict=True))
    torch.testing.assert_close(0.5 * FFN.aux_loss(layers, records, 0.5), want)
    alone = [sequence_loss(RouterRecord(r.logits, r.selected), "sigmoid") for r in records]
    assert (want - sum(c * loss for c, loss in zip(coefs, alone, strict=True))).abs() > 1e-4  # documents count


def test_aux_loss_reaches_the_router():
    made = moe(z_loss=0.1, affinity="sqrt_softplus")
    _, record = made(torch.randn(2, 5, 14), context(2, 5))
    FFN.aux_loss([made], [record], 0.01).backward()
    assert made.router.weight.grad.abs().min() > 0


@pytest.mark.parametrize("policy", ["overflow", "drop", "pad"])
def test_an_evaluated_token_depends_on_nothing_else(policy):
    made = moe(capacity_drop_policy=policy, capacity_factor=0.3, router_jitter=0.2).eval()
    x = torch.randn(4, 9, 14)
    full = made(x, context(4, 9))[0]
    for b in range(4):
        for t in range(9):
            alone = made(x[b : b + 1, t : t + 1], context(1, 1))[0]
            torch.testing.assert_close(alone[0, 0], full[b, t], rtol=1e-5, atol=1e-5)


KINDS = [
    {},
    {"routing": HASH, "normalize_top_k": False},
    {"balance": GROUPS | {"sequence_aux_coef": 0.1}},
    {"balance": GROUPS, "bias_correction": ON, "affinity": "sigmoid"},
    {"router_bias": True, "activation": "swiglu_clamped"},
    {"router_bias": True, "routing": HASH},
]

KIND_NAMES = ["learned", "hash", "groups", "corrected groups", "biased", "biased hash"]


@pytest.mark.parametrize("policy", ["overflow", "drop", "pad"])
@pytest.mark.parametrize("kind", KINDS, ids=KIND_NAMES)
def test_every_parameter_gets_a_finite_gradient_from_one_token(policy, kind):
    made = moe(bias=True, experts=9, capacity_drop_policy=policy, shared_experts=1, **kind).train()
    made(torch.randn(1, 1, 14), context(1, 1))[0].sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in made.parameters())
    idle = made.experts.gate_up_proj.grad.abs().amax((1, 2)) == 0
    assert idle.sum() == 7  # two experts were chosen
    assert all(p.grad.abs().max() > 0 for p in made.router.parameters())


@pytest.mark.parametrize("kind", KINDS, ids=KIND_NAMES)
def test_work_grows_with_the_chosen_experts_and_not_with_all(kind):
    """The products of a forward and backward pass, counted: 2 of 6 experts cost what 2 of 48 do, 4 twice as much."""

    def work(experts, top_k):
        groups = {"groups": 3, "group_limit": 2} if kind.get("balance") else {}
        made = moe(experts=experts, top_k=top_k, **kind | {"balance": kind.get("balance", NOTHING) | groups})
        x = torch.randn(3, 7, 14, requires_grad=True)
        with FlopCounterMode(display=False) as counter:
            made(x, context(3, 7))[0].sum().backward()
        return counter.get_total_flops() - 3 * 2 * 21 * 14 * experts  # without the router's

    assert work(6, 2) == work(48, 2) == 3 * 2 * 21 * 14 * 3 * 11 * 2
    assert work(48, 4) == 2 * work(48, 2)


def test_only_a_hash_needs_ids():
    assert moe(routing=HASH).needs_ids
    assert not moe().needs_ids
    with pytest.raises(ValueError, match="give input_ids"):
        moe(routing=HASH)(torch.randn(1, 2, 14), Context(positions=torch.arange(2)[None]))


def test_update_bias_counts_real_tokens_and_needs_correction():
    keep = torch.tensor([[True, False]])
    record = RouterRecord(torch.zeros(1, 2, 5), torch.tensor([[[0, 1], [2, 3]]]), keep)
    made = moe(bias_correction=ON)
    made.update_bias([record])
    assert made.router.correction_bias.tolist() == pytest.approx([-0.05, -0.05, 0.05, 0.05, 0.05])
    off = moe()
    before = copy.deepcopy(off.state_dict())
    off.update_bias([record])
    assert all(torch.equal(before[k], v) for k, v in off.state_dict().items())


def test_a_layer_that_ran_twice_balances_once_over_both_runs():
    runs = [RouterRecord(torch.zeros(1, 2, 5), torch.tensor([[[0, 1], [0, e]]])) for e in (2, 3)]
    made = moe(bias_correction=ON)
    made.update_bias(runs)  # loads 4, 2, 1, 1, 0; mean 1.6
    assert made.router.correction_bias.tolist() == pytest.approx([-0.05, -0.05, 0.05, 0.05, 0.05])


def test_checkpointing_routes_as_the_first_time_though_the_bias_moved():
    grads = []
    for checkpointed in (False, True):
        made = moe(bias_correction=ON | {"update_rate": 5.0}, affinity="sigmoid", router_jitter=0.1).train()
        call, x = context(2, 9), torch.randn(2, 9, 14, generator=torch.Generator().manual_seed(1))
        torch.manual_seed(2)
        if checkpointed:
            y, record = torch.utils.checkpoint.checkpoint(made, x, call, use_reentrant=False)
        else:
            y, record = made(x, call)
        made.update_bias([record])
        y.square().sum().backward()
        grads.append([p.grad for p in made.parameters()] + [made.router.correction_bias])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_compiles(dtype):
    """In bfloat16 as one graph; in other dtypes the loop over experts breaks it."""
    whole = dtype == torch.bfloat16 and hasattr(torch.nn.functional, "grouped_mm")
    made = moe(d_model=16, d_ff=8, shared_experts=1, bias=True, dtype=dtype).eval()
    x = torch.randn(2, 5, 16, dtype=dtype)
    with torch.no_grad():
        got = torch.compile(made, fullgraph=whole, backend="eager")(x, context(2, 5))[0]
        want = made(x, context(2, 5))[0]
    limits = {"rtol": 0.02, "atol": 0.02 * want.std().item()} if whole else {}  # biases are rounded one step later
    torch.testing.assert_close(got, want, **limits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_half_and_close(dtype):
    made, x = moe(shared_experts=1, bias=True), torch.randn(2, 5, 14)
    want, record = made(x, context(2, 5))
    low, theirs = made.to(dtype)(x.to(dtype), context(2, 5))
    assert low.dtype == dtype
    same = (theirs.selected == record.selected).all(-1)
    assert same.float().mean() > 0.7
    torch.testing.assert_close(low.float()[same], want[same], rtol=0.1, atol=0.3)


def test_unknown_policy_is_refused():
    with pytest.raises(ValueError, match="unknown capacity_drop_policy 'shed'"):
        moe(capacity_drop_policy="shed")
