"""Parallel streams: every merge against its formula, and causal cross attention against a loop."""

import pytest
import torch
from torch import nn

from eulerstack.modeling.op_context import build_context
from eulerstack.modeling.run_parallel import CrossAttention, Run
from eulerstack.modeling.walk import Walk


class Shift(nn.Module):
    """A layer that adds a constant, so that what each stream adds is known."""

    def __init__(self, by: float):
        super().__init__()
        self.by = by

    def forward(self, x, context, state):
        return x + self.by, None, {}


SHIFTS = (1.0, 10.0, 100.0)


@pytest.fixture
def config(payload, block, build):
    return build(payload(block(), hidden_size=5, num_attention_heads=2, head_dim=3)).config


@pytest.fixture
def x():
    return torch.randn(2, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def run(config, merge, **options):
    torch.manual_seed(1)
    given = {"streams": [[0, 1], [2]], "merge": merge, "projection": True, "source": None, "target": None} | options
    return Run(config, {}, **given).double()


def walk(x):
    layers = nn.ModuleList(Shift(by) for by in SHIFTS)
    return Walk(layers, context_of(x), None)


def context_of(x, attention_mask=None, use_cache=False):
    given = {"attention_mask": attention_mask, "use_cache": use_cache}
    return build_context(x, past=None, position_ids=None, input_ids=None, extra={}, **given)


def changes(x):
    return torch.full_like(x, 11.0), torch.full_like(x, 100.0)


def test_concat(config, x):
    made = run(config, "concat")
    assert torch.allclose(made(x, walk(x)), x + torch.cat(changes(x), -1) @ made.proj.weight.T)


def test_add_with_and_without_projection(config, x):
    made = run(config, "add")
    assert torch.allclose(made(x, walk(x)), x + sum(changes(x)) @ made.proj.weight.T)
    assert torch.allclose(run(config, "add", projection=False)(x, walk(x)), x + 111.0)


def test_gated(config, x):
    made = run(config, "gated", projection=False)
    gates = (x @ made.gate.weight.T).softmax(-1)
    want = x + gates[..., :1] * 11.0 + gates[..., 1:] * 100.0
    assert torch.allclose(made(x, walk(x)), want)
    assert (gates[..., 0].max() - gates[..., 0].min()) > 0.01


def test_cross_attention_adds_what_the_target_reads_from_the_source(config, x):
    made = run(config, "cross_attn", projection=False, source=1, target=0)
    read, _ = made.attention(x + 11.0, x + 100.0, walk(x).context, None)
    assert torch.allclose(made(x, walk(x)), x + 11.0 + read)


@pytest.mark.parametrize("merge", ["concat", "add", "gated", "cross_attn"])
def test_streams_of_a_hyper_connection_are_merged_one_by_one(config, x, merge):
    """Equal streams stay equal, and each is what a single stream would be."""
    made = run(config, merge, source=1, target=0)
    wide = x.unsqueeze(2).repeat(1, 1, 3, 1)
    assert torch.allclose(made(wide, walk(x)), made(x, walk(x)).unsqueeze(2).expand_as(wide))


def test_cross_attention_is_causal_attention_written_out(config, x):
    torch.manual_seed(2)
    module, source = CrossAttention(config).double(), x.flip(0) * 1.5
    keep = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])
    context = context_of(x, attention_mask=keep, use_cache=True)
    y, state = module(x, source, context, None)
    q, s = module.q_proj(module.q_norm(x)), module.kv_norm(source)
    for row in range(2):
        for t in range(7):
            if not keep[row, t]:
                continue
            seen = [j for j in range(t + 1) if keep[row, j]]
            heads = []
            for h in range(2):
                cut = slice(3 * h, 3 * h + 3)
                keys, values = (p(s[row, seen])[:, cut] for p in (module.k_proj, module.v_proj))
                weights = (keys @ q[row, t, cut] / 3**0.5).softmax(0)
                heads.append(weights @ values)
            assert torch.allclose(y[row, t], module.o_proj(torch.cat(heads)), rtol=0, atol=1e-12)
    assert state["keys"].shape == (2, 7, 2, 3)


class Packed(nn.Module):
    """A linear layer as a quantiser leaves it: the dtype of its weight is no dtype to compute in."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.exact = [linear]
        self.weight = nn.Parameter(torch.zeros(linear.weight.numel(), 1, dtype=torch.uint8), requires_grad=False)

    def forward(self, x):
        return self.exact[0](x)


@pytest.mark.parametrize("merge", ["concat", "add", "gated", "cross_attn"])
def test_quantised_projections_read_whole_numbers_no_more_than_others(config, x, merge):
    made = run(config, merge, source=1, target=0)
    want = made(x, walk(x))
    for module in list(made.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, Packed(child))
    assert torch.equal(made(x, walk(x)), want)
