import math
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from eulerstack.modeling.context import Context
from eulerstack.modeling.initial import Constant, Init, Normal
from eulerstack.modeling.op_balance import count
from eulerstack.modeling.op_router import Router

OFF = {"enabled": False, "update_rate": 1e-3, "target_imbalance": 0.0}
ON = OFF | {"enabled": True}
HASH = {"type": "hash", "hash_salt": 982451653}


def router(d_model=12, dtype_policy="uniform", **options):
    torch.manual_seed(3)
    options = {
        "experts": 6,
        "top_k": 2,
        "affinity": "softmax",
        "normalize_top_k": True,
        "routed_scale": 1.0,
        "router_bias": False,
        "router_init_std": None,
        "router_jitter": 0.0,
        "bias_correction": OFF,
        "routing": {"type": "learned", "hash_salt": None},
        "groups": None,
        "group_limit": None,
    } | options
    made = Router(SimpleNamespace(hidden_size=d_model, dtype_policy=dtype_policy), **options)
    torch.nn.init.normal_(made.weight)
    return made


def context(b=2, t=5, **facts):
    return Context(positions=torch.arange(t).expand(b, t), **facts)


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


def test_the_learned_bias_is_part_of_the_logits():
    """Unlike the correction bias it weighs as well, in every precision and where a hash chooses."""
    x = torch.randn(2, 5, 12)
    plain = router()
    made, hashed, safe = (
        router(router_bias=True, **more) for more in ({}, {"routing": HASH}, {"dtype_policy": "layered_safe"})
    )
    for each in (made, hashed, safe):
        each.bias.data = torch.linspace(-2, 2, 6)
        ids = torch.arange(10).view(2, 5)
        weights, record = each(x, context(input_ids=ids))
        torch.testing.assert_close(record.logits, plain(x, context())[1].logits + torch.linspace(-2, 2, 6))
        chosen = record.logits.softmax(-1).gather(-1, record.selected)
        torch.testing.assert_close(weights, chosen / chosen.sum(-1, keepdim=True))
        weights[..., 0].sum().backward()
        assert each.bias.grad.abs().min() > 0
    low, _ = made.to(torch.bfloat16)(x.bfloat16(), context())
    assert low.dtype == torch.float32
    assert "bias" not in plain.state_dict()


def test_update_moves_each_bias_against_its_load_and_spares_the_balanced():
    made = router(experts=4, bias_correction=ON | {"update_rate": 0.5, "target_imbalance": 0.25})
    selected = torch.tensor([[[0, 0], [0, 1], [1, 2], [2, 2]]])  # loads 3, 2, 3, 0; mean 2
    made.update_bias(count(selected, 4))
    assert made.correction_bias.tolist() == [-0.5, 0.0, -0.5, 0.5]
    made.update_bias(count(selected, 4, torch.tensor([[True, False, False, False]])))  # loads 2, 0, 0, 0
    assert made.correction_bias.tolist() == [-1.0, 0.5, 0.0, 1.0]
    made.update_bias(count(selected, 4, torch.zeros(1, 4, dtype=torch.bool)))
    assert made.correction_bias.tolist() == [-1.0, 0.5, 0.0, 1.0]


def test_bias_correction_balances_a_skewed_router():
    torch.manual_seed(0)
    made = router(d_model=8, experts=8, affinity="sigmoid", bias_correction=ON | {"update_rate": 0.02})
    x = torch.randn(1, 512, 8) + 0.7
    loads = []
    for _ in range(120):
        record = made(x, context(1, 512))[1]
        loads.append(count(record.selected, 8).max().item() / 128)
        made.update_bias(count(record.selected, 8))
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
    assert router(router_bias=True).initial(init) == {"weight": Normal(0.02), "bias": Constant(0.0)}
    assert not any(isinstance(m, torch.nn.Linear) for m in router().modules())


def test_a_group_is_worth_its_best_expert_or_two_where_a_bias_corrects():
    """Groups {0.9, 0} and {0.6, 0.5}: the first has the best expert, the second the best two."""
    options = {"d_model": 4, "experts": 4, "top_k": 1, "groups": 2, "group_limit": 1, "affinity": "sigmoid"}
    plain, corrected = (router(bias_correction=c, **options) for c in (OFF, ON))
    x = torch.tensor([[[0.9, 1e-6, 0.6, 0.5]]]).logit()
    for made, best in ((plain, 0), (corrected, 2)):
        made.weight.data = torch.eye(4)
        assert made(x, context(1, 1))[1].selected.tolist() == [[[best]]]


def test_a_hash_without_ids_is_refused():
    with pytest.raises(ValueError, match="hash of the token ids; give input_ids"):
        router(routing=HASH)(torch.randn(2, 5, 12), context())


def test_the_record_knows_padding_and_documents():
    keep = torch.tensor([[True, True, True, True, False]] * 2)
    starts = torch.tensor([[False, False, True, False, False], [False, True, False, True, False]])
    _, record = router()(torch.randn(2, 5, 12), context(keep=keep, starts=starts))
    assert torch.equal(record.keep, keep)
    assert record.documents.tolist() == [[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]]
    assert router()(torch.randn(2, 5, 12), context())[1].documents is None


def test_unknown_words_are_refused():
    with pytest.raises(ValueError, match="unknown affinity 'tanh'"):
        router(affinity="tanh")
    with pytest.raises(ValueError, match="unknown routing 'dice'"):
        router(routing={"type": "dice", "hash_salt": 1})


REPLICA = """
import sys
from types import SimpleNamespace
import torch
from eulerstack.modeling.op_balance import count
from eulerstack.modeling.op_router import Router
rank, store = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
router = Router(SimpleNamespace(hidden_size=8, dtype_policy="uniform"), experts=4, top_k=2, affinity="sigmoid",
    normalize_top_k=True, routed_scale=1.0, router_bias=False, router_init_std=None, router_jitter=0.0,
    bias_correction={"enabled": True, "update_rate": 0.5, "target_imbalance": 0.0},
    routing={"type": "learned", "hash_salt": None}, groups=None, group_limit=None)
router.update_bias(count(torch.tensor([[[0, 1], [0, 3 * rank]]]), 4))
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
