"""What compressed attention is predicted to look at and to keep is what it looks at and keeps."""

import json
from dataclasses import replace

import pytest
import torch
from pydantic import TypeAdapter
from torch import nn

from eulerstack.language.block import Dims
from eulerstack.language.template import Mixer
from eulerstack.modeling.configuration_eulerstack import EulerStackConfig
from eulerstack.modeling.context import Context
from eulerstack.modeling.mixer_compressed_attention import Mixer as Built

DIMS = Dims(d_model=44, n_heads=6, n_kv_heads=3, head_dim=10, d_ff=37, max_seq_len=64, positional="rope", dtype_bytes=4)
INDEXER = {"arch": "dot_product", "n_heads": 3, "d_per_head": 6, "dtype": "fp32"}
CASES = {
    "hca": {"compression": {"type": "hca", "m_block": 3}, "window": 5},
    "csa": {"compression": {"type": "csa", "m_block": 4, "top_k_blocks": 2, "indexer": INDEXER}},
    "nsa": {"compression": {"type": "nsa_learned", "m_block": 4, "top_k_blocks": 2, "indexer": INDEXER}, "window": 2},
    "nsa with all blocks": {"compression": {"type": "nsa_learned", "m_block": 2, "indexer": INDEXER}},
}


def block_of(case: str):
    written = {"type": "attention", "attention": CASES[case]}
    return TypeAdapter(Mixer).validate_json(json.dumps(written)).completed(DIMS)


def built(block) -> Built:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
    options = {name: value for name, value in block.runtime(DIMS).items() if name != "type"}
    config = EulerStackConfig(hidden_size=DIMS.d_model, positional="rope", rope_parameters=rope)
    config._attn_implementation = "eager"
    made = Built(config, 0, **options)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.3)
    return made.eval()


def context(length: int) -> Context:
    places = torch.arange(length)[None]
    return Context(positions=places, key_positions=places)


def keys_seen(mixer: Built, length: int) -> tuple[int, int]:
    """How many keys of all softmaxes have weight for the last token, and in how many is its own block chosen whole."""
    seen, masks = 0, []
    attend = mixer.attend

    def watch(q, k, v, context, **named):
        masks.append(named["mask"])
        return attend(q, k, v, context, **named)

    mixer.attend = watch
    with torch.no_grad():
        mixer(torch.randn(1, length, DIMS.d_model, generator=torch.Generator().manual_seed(0)), context(length))
    for mask in masks:
        seen += int((mask[0, 0, -1] if mask.dtype == torch.bool else mask[0, 0, -1] > -torch.inf).sum())
    return seen, int(mixer.compression == "nsa_learned" and length < mixer.m_block)  # the key for an empty softmax


@pytest.mark.parametrize("length", [1, 3, 4, 7, 8, 11, 12, 30])
@pytest.mark.parametrize("case", CASES)
def test_flops_count_the_keys_that_the_masks_show(case, length):
    block = block_of(case)
    mixer = built(block)
    linear = sum(2 * m.weight.numel() for m in mixer.modules() if isinstance(m, nn.Linear))
    indexer = block.attention.compression.indexer
    scores = 2 * indexer.n_heads * indexer.d_per_head * (length // mixer.m_block) if indexer else 0
    seen, null = keys_seen(mixer, length)
    predicted = block.flops(DIMS, length) - linear - scores
    exact = 4 * DIMS.n_heads * DIMS.head_dim * (seen - null)
    own_block_chosen = case == "nsa" and length % mixer.m_block == 0  # then what is predicted is the most there can be
    assert exact <= predicted if own_block_chosen else exact == predicted


def test_sixteen_blocks_are_the_default_of_nsa_learned():
    compression = block_of("nsa with all blocks").attention.compression
    assert compression.top_k_blocks == 16
    assert block_of("hca").attention.compression.top_k_blocks is None


def test_a_small_variant_still_chooses_among_more_blocks_than_it_takes():
    """In a text of the small length; and wide models shrink."""
    wide = replace(DIMS, d_model=4096, n_heads=32, n_kv_heads=8, head_dim=128, max_seq_len=65536)
    small = replace(DIMS, d_model=32, n_heads=4, n_kv_heads=2, head_dim=8, max_seq_len=64)
    options = {"type": "csa", "m_block": 128, "top_k_blocks": 512}
    options["indexer"] = {"arch": "relu_mha", "n_heads": 64, "d_per_head": 128}
    written = {"type": "attention", "attention": {"window": 128, "compression": options}}
    part = TypeAdapter(Mixer).validate_json(json.dumps(written)).completed(wide).shrunk(wide, small)
    own = part.attention.compression
    assert small.max_seq_len // own.m_block > own.top_k_blocks > 1
    assert sum(torch.Size(shape).numel() for shape in part.tensors(small).values()) < 10_000
