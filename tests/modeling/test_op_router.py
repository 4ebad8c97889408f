import math
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from eulerstack.modeling.context import Context
from eulerstack.modeling.initial import Constant, Init, Normal
from eulerstack.modeling.op_router import Router, RouterRecord, affinity, balance_loss, count, z_loss

OFF = {"enabled": False, "update_rate": 1e-3, "target_imbalance": 0.0}
ON = OFF | {"enabled": True}


def router(d_model=12, dtype_policy="uniform", **options):
    torch.manual_seed(3)
    options = {
        "experts": 6,
        "top_k": 2,
        "affinity": "softmax",
        "normalize_top_k": True,
        "routed_scale": 1.0,
        "router_init_std": None,
        "router_jitter": 0.0,
        "bias_correction": OFF,
    } | options
    made = Router(SimpleNamespace(hidden_size=d_model, dtype_policy=dtype_policy), **options)
    torch.nn.init.normal_(made.weight)
    return made


def context(b=2, t=5, **facts):
    return Context(positions=torch.arange(t).expand(b, t), **facts)


def records(n, *, shape=(3, 7), experts=5, top_k=2, seed=0):
    torch.manual_seed(seed)
    logits = [torch.randn(*shape, experts) for _ in range(n)]
    return [RouterRecord(x, x.topk(top_k).indices) for x in logits]


@pytest.mark.parametrize(
    ("kind", "formula"),
    [("sigmoid", lambda x: 1 / (1 + math.exp(-x))), ("sqrt_softplus", lambda x: math.sqrt(math.log1p(math.exp(x))))],
)
def test_elementwise_affinity_is_its_formula(kind, formula):
    x = torch.linspace(-40, 30, 71, dtype=torch.float64)
    want = torch.tensor([formula(v) for v in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(affinity(x, kind), want, rtol=1e-8, atol=0)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid", "sqrt_softplus"])
def test_affinity_of_extreme_logits_has_finite_gradients_in_float32(kind):
    x = torch.tensor([-1e4, -200.0, -90.0, -30.0, 0.0, 90.0, 1e4], dtype=torch.bfloat16, requires_grad=True)
    y = affinity(x, kind)
    y.sum().backward()
    assert y.dtype == torch.float32
    assert torch.isfinite(y).all()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_balance_loss_is_transformers_formula(masked, top_k):
    made = records(4, top_k=top_k)
    keep = torch.rand(3, 7) > 0.4 if masked else None
    theirs = tuple(r.logits.flatten(0, 1) for r in made)
    want = load_balancing_loss_func(theirs, 5, top_k, keep if keep is None else keep.long())
    torch.testing.assert_close(balance_loss(made, "softmax", keep), want, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid", "sqrt_softplus"])
def test_balance_loss_of_an_even_load_is_top_k(kind):
    logits = torch.eye(6).expand(2, 6, 6) * 3
    selected = torch.stack([torch.arange(6), (torch.arange(6) + 1) % 6], -1).expand(2, 6, 2)
    assert balance_loss([RouterRecord(logits, selected)], kind, None).item() == pytest.approx(2.0)


def test_padding_changes_neither_loss_whatever_it_holds():
    (made,) = records(1)
    keep = torch.rand(3, 7) > 0.4
    noisy = RouterRecord(made.logits.masked_fill(~keep[..., None], float("inf")), made.selected)
    assert torch.equal(balance_loss([made], "sigmoid", keep), balance_loss([noisy], "sigmoid", keep))
    assert torch.equal(z_loss([made], keep), z_loss([noisy], keep))
    assert not torch.equal(z_loss([made], keep), z_loss([made], None))


def test_losses_of_nothing_but_padding_are_zero():
    keep = torch.zeros(3, 7, dtype=torch.bool)
    assert balance_loss(records(2), "softmax", keep) == 0
    assert z_loss(records(2), keep) == 0


def test_z_loss_is_the_mean_square_of_the_logsumexp():
    made = records(2)
    keep = torch.rand(3, 7) > 0.4
    squares = [math.log(sum(map(math.exp, x))) ** 2 for r in made for x in r.logits[keep].tolist()]
    assert z_loss(made, keep).item() == pytest.approx(sum(squares) / len(squares), rel=1e-5)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_count_counts_real_assignments(data):
    experts, b, t, k = (data.draw(st.integers(1, n)) for n in (7, 3, 5, 3))
    rows = data.draw(st.lists(st.integers(0, experts - 1), min_size=b * t * k, max_size=b * t * k))
    kept = data.draw(st.lists(st.booleans(), min_size=b * t, max_size=b * t))
    got = count(torch.tensor(rows).view(b, t, k), experts, torch.tensor(kept).view(b, t))
    real = [e for i, e in enumerate(rows) if kept[i // k]]
    assert got.tolist() == [real.count(e) for e in range(experts)]


def test_weights_are_normalised_and_scaled():
    x = torch.randn(2, 5, 12)
    weights, record = router(affinity="sigmoid", routed_scale=2.5)(x, context())
    torch.testing.assert_close(weights.sum(-1), torch.full((2, 5), 2.5))
    plain, _ = router(affinity="sigmoid", normalize_top_k=False)(x, context())
    torch.testing.assert_close(plain, record.logits.sigmoid().gather(-1, record.selected))


def test_the_bias_chooses_and_does_not_weigh():
    x = torch.randn(2, 5, 12)
    made = router(affinity="sigmoid", normalize_top_k=False, bias_correction=ON)
    made.correction_bias[4] = 10.0
    weights, record = made(x, context())
    assert (record.selected == 4).any(-1).all()
    torch.testing.assert_close(weights, record.logits.sigmoid().gather(-1, record.selected))


def test_update_moves_each_bias_against_its_load_and_spares_the_balanced():
    made = router(experts=4, bias_correction=ON | {"update_rate": 0.5, "target_imbalance": 0.25})
    selected = torch.tensor([[[0, 0], [0, 1], [1, 2], [2, 2]]])  # loads 3, 2, 3, 0; mean 2
    made.update_bias(selected, None)
    assert made.correction_bias.tolist() == [-0.5, 0.0, -0.5, 0.5]
    made.update_bias(selected, torch.tensor([[True, False, False, False]]))  # loads 2, 0, 0, 0
    assert made.correction_bias.tolist() == [-1.0, 0.5, 0.0, 1.0]
    made.update_bias(selected, torch.zeros(1, 4, dtype=torch.bool))
    assert made.correction_bias.tolist() == [-1.0, 0.5, 0.0, 1.0]


def test_bias_correction_balances_a_skewed_router():
    torch.manual_seed(0)
    made = router(d_model=8, experts=8, affinity="sigmoid", bias_correction=ON | {"update_rate": 0.02})
    x = torch.randn(1, 512, 8) + 0.7
    loads = []
    for _ in range(120):
        record = made(x, context(1, 512))[1]
        loads.append(count(record.selected, 8).max().item() / 128)
        made.update_bias(record.selected, None)
    assert loads[0] > 1.8
    assert max(loads[-10:]) < 1.25


def test_a_call_keeps_the_bias_it_started_with():
    made = router(affinity="sigmoid", bias_correction=ON).train()
    x, call = torch.randn(2, 5, 12), context()
    before = made(x, call)[1].selected
    made.correction_bias += torch.linspace(-3, 3, 6)
    assert torch.equal(made(x, call)[1].selected, before)
    assert not torch.equal(made(x, context())[1].selected, before)


def test_the_bias_stays_in_float32_when_the_model_is_cast():
    made = router(bias_correction=ON)
    made.correction_bias += 0.1234567
    assert made.to(torch.bfloat16).weight.dtype == torch.bfloat16
    assert made.correction_bias.dtype == torch.float32
    assert made.correction_bias.tolist() == pytest.approx([0.1234567] * 6)
    assert made.double().correction_bias.dtype == torch.float64
    assert "correction_bias" in made.state_dict()
    assert "correction_bias" not in router().state_dict()


def test_jitter_acts_in_training_only():
    made, x = router(router_jitter=0.3), torch.randn(2, 5, 12)
    clean = router()(x, context())[1].logits
    assert torch.equal(made.eval()(x, context())[1].logits, clean)
    noise = made.train()(torch.ones(1, 5000, 12), context(1, 5000))[1].logits - made.weight.sum(-1)
    want = made.weight.square().sum(-1).sqrt() * 0.3 / math.sqrt(3)  # uniform noise has std eps / sqrt(3)
    torch.testing.assert_close(noise.std((0, 1)), want, rtol=0.05, atol=0)


@pytest.mark.parametrize(("policy", "dtype"), [("uniform", torch.bfloat16), ("layered_safe", torch.float32)])
def test_logits_are_in_float32_where_the_policy_says_so(policy, dtype):
    made = router(dtype_policy=policy).to(torch.bfloat16)
    x = torch.randn(2, 5, 12, dtype=torch.bfloat16)
    weights, record = made(x, context())
    assert record.logits.dtype == dtype
    assert weights.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert made(x, context())[1].logits.dtype == dtype


def test_initial_rules():
    init = Init("scaled_residual", 0.02, 3)
    assert router().initial(init) == {"weight": Normal(0.02)}
    want = {"weight": Normal(0.5), "correction_bias": Constant(0.0)}
    assert router(router_init_std=0.5, bias_correction=ON).initial(init) == want
    assert not any(isinstance(m, torch.nn.Linear) for m in router().modules())


def test_unknown_affinity_is_refused():
    with pytest.raises(ValueError, match="unknown affinity 'tanh'"):
        router(affinity="tanh")


REPLICA = """
import sys
from types import SimpleNamespace
import torch
from eulerstack.modeling.op_router import Router
rank, store = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
router = Router(SimpleNamespace(hidden_size=8, dtype_policy="uniform"), experts=4, top_k=2, affinity="sigmoid",
    normalize_top_k=True, routed_scale=1.0, router_init_std=None, router_jitter=0.0,
    bias_correction={"enabled": True, "update_rate": 0.5, "target_imbalance": 0.0})
router.update_bias(torch.tensor([[[0, 1], [0, 3 * rank]]]), None)
print(router.correction_bias.tolist())
torch.distributed.destroy_process_group()
"""


def test_replicas_take_the_same_step(tmp_path):
    """Loads 3, 1, 0, 0 here and 2, 1, 0, 1 there: together 5, 2, 0, 1."""
    command = [sys.executable, "-c", REPLICA]
    runs = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    said = [run.communicate(timeout=120)[0] for run in runs]
    assert said == ["[-0.5, 0.0, 0.5, 0.5]\n"] * 2
