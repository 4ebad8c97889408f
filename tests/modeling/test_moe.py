"""Whole models with mixtures of experts: against transformers' Mixtral, in training, and through files."""

import copy

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

OFF = {"enabled": False, "update_rate": 1e-3, "target_imbalance": 0.0}
HASH = {"routing": {"type": "hash", "hash_salt": 7}, "load_balance_coef": 0.0, "bias_correction": OFF}
MIXTRAL = {"affinity": "softmax", "routed_scale": 1.0, "shared_experts": 0, "z_loss": 0.0, "bias_correction": OFF}
RENAMED = {
    "mixer_norm": "input_layernorm",
    "mixer": "self_attn",
    "ffn_norm": "post_attention_layernorm",
    "ffn.router": "mlp.gate",
    "ffn.experts": "mlp.experts",
}


def renamed(name):
    for ours, theirs in RENAMED.items():
        name = name.replace(f".{ours}.", f".{theirs}.")
    return name


@pytest.fixture(scope="module")
def mixtrals(build, payload, block):
    """Our model and transformers' with the same weights, odd sizes, three layers."""
    ours = build(payload(block(ffn="moe", qkv_bias=False, scale=6**-0.5, ffn_options=MIXTRAL), pattern=["kind0"] * 3))
    config = MixtralConfig(
        vocab_size=67, hidden_size=20, intermediate_size=11, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=6, num_local_experts=5, num_experts_per_tok=2, rope_theta=10000.0,
        tie_word_embeddings=True, router_aux_loss_coef=0.01, rms_norm_eps=1e-5, output_router_logits=True,
    )  # fmt: skip
    config._experts_implementation = "eager"  # the default one refuses odd sizes
    theirs = MixtralForCausalLM(config).eval()
    theirs.load_state_dict({renamed(name): value for name, value in ours.state_dict().items()})
    return ours, theirs


@pytest.mark.parametrize("padding", [None, "left", "right"])
def test_equals_mixtral(mixtrals, padding):
    ours, theirs = mixtrals
    ids = torch.randint(67, (3, 13), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    if padding:
        mask[1, slice(0, 5) if padding == "left" else slice(9, None)] = 0
    labels = ids.masked_fill(mask * mask.roll(1, 1) == 0, -100)  # nor is anything predicted from padding
    call = {"input_ids": ids, "labels": labels, "attention_mask": mask, "use_cache": False}
    got, want = ours(**call), theirs(**call)
    off = (got.logits - want.logits)[mask == 1].abs().max()
    assert off < 1e-4 * want.logits.std()
    assert got.aux_loss.item() == pytest.approx(want.aux_loss.item(), rel=1e-5)
    assert got.loss.item() == pytest.approx(want.loss.item(), rel=1e-5)
    assert want.aux_loss.item() > 2.01  # not a balanced router, for which any formula gives 2


def test_gradients_equal_mixtrals(mixtrals):
    ours, theirs = (copy.deepcopy(m).train() for m in mixtrals)
    ids = torch.randint(67, (2, 11), generator=torch.Generator().manual_seed(1))
    for model in (ours, theirs):
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    found = dict(theirs.named_parameters())
    for name, p in ours.named_parameters():
        torch.testing.assert_close(p.grad, found[renamed(name)].grad, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_updates_each_bias_once(build, payload, block, reentrant):
    plain = build(payload(block(ffn="moe"), pattern=["kind0"] * 2)).train()
    checkpointed = copy.deepcopy(plain)
    new_name = "activation_checkpointing_enable"  # transformers 5.24 warns of the older one
    enable = getattr(checkpointed, new_name, None) or checkpointed.gradient_checkpointing_enable
    enable({"use_reentrant": reentrant})
    ids = torch.randint(67, (2, 11), generator=torch.Generator().manual_seed(1))
    for model in (plain, checkpointed):
        for _ in range(2):
            model(input_ids=ids, labels=ids).loss.backward()
    bias = plain.model.layers[0].ffn.router.correction_bias
    assert bias.abs().max().item() == pytest.approx(0.02)  # two steps of 0.01
    for (name, a), b in zip(plain.state_dict().items(), checkpointed.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    for (name, p), q in zip(plain.named_parameters(), checkpointed.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=name)


def test_evaluation_leaves_the_biases_alone(build, payload, block):
    model = build(payload(block(ffn="moe")))
    model(input_ids=torch.arange(9)[None])
    assert model.model.layers[0].ffn.router.correction_bias.abs().max() == 0


def test_a_loaded_half_precision_model_keeps_its_biases(build, payload, block, tmp_path):
    model = build(payload(block(ffn="moe")))
    bias = model.model.layers[0].ffn.router.correction_bias
    bias += 0.1234567
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {p.dtype for p in again.parameters()} == {torch.bfloat16}
    assert torch.equal(again.model.layers[0].ffn.router.correction_bias, bias)


@pytest.fixture
def hashed(build, payload, block):
    return build(payload(block(ffn="moe", ffn_options=HASH), block(ffn="moe")), torch.float64)


def chosen(model, **inputs):
    """The experts of the first layer."""
    return model.model(use_cache=False, **inputs).records[0][2].selected


def test_a_hash_gives_a_token_the_same_experts_wherever_it_stands(hashed):
    ids = torch.tensor([[5, 9, 5, 60], [60, 60, 9, 5]])
    selected = chosen(hashed, input_ids=ids)
    for token in (5, 9, 60):
        assert selected[ids == token].unique(dim=0).shape[0] == 1
    assert selected.unique(dim=0).shape[0] > 1


def test_a_hash_routes_as_before_after_the_vocabulary_has_grown(hashed):
    ids = torch.randint(67, (2, 11), generator=torch.Generator().manual_seed(1))
    logits, selected = hashed(input_ids=ids).logits, chosen(hashed, input_ids=ids)
    hashed.resize_token_embeddings(90, mean_resizing=False)
    assert torch.equal(chosen(hashed, input_ids=ids), selected)
    torch.testing.assert_close(hashed(input_ids=ids).logits[..., :67], logits)
    assert hashed(input_ids=torch.full((1, 3), 89)).logits.shape == (1, 3, 90)


def test_a_hash_takes_embeddings_for_their_tokens(hashed):
    ids = torch.randint(67, (2, 11), generator=torch.Generator().manual_seed(1))
    embeds = hashed.get_input_embeddings()(ids)
    torch.testing.assert_close(hashed(inputs_embeds=embeds).logits, hashed(input_ids=ids).logits)


def test_a_hash_router_learns_its_weights(hashed):
    ids = torch.randint(67, (2, 11), generator=torch.Generator().manual_seed(1))
    hashed.train()(input_ids=ids, labels=ids).loss.backward()
    assert hashed.model.layers[0].ffn.router.weight.grad.abs().max() > 0
