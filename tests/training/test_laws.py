"""Every law can fail, and says where: one fault in one layer of a sound directory, seen by a stranger.

Layer 0 is of template `state` (Mamba-2, gated MLP), layers 1 and 2 are of `local` (attention, experts), the last one
with an override.
"""

import pytest

SAW_FUTURE = """
class Fault(mixer_attention):
    def forward(self, x, context, state=None):
        y, state = super().forward(x, context, state)
        return (y + x.mean(1, keepdim=True) if self.layer_idx == 1 else y), state
PARTS["mixer_attention"] = Fault
"""
FORGETS = """
class Fault(mixer_mamba2):
    def forward(self, x, context, state=None):
        return super().forward(x, context, None)
PARTS["mixer_mamba2"] = Fault
"""
CANNOT_CONTINUE = """
class Fault(mixer_attention):
    def forward(self, x, context, state=None):
        if state is not None and self.layer_idx == 2:
            raise KeyError("keys")
        return super().forward(x, context, state)
PARTS["mixer_attention"] = Fault
"""
NOT_A_NUMBER = """
class Fault(mixer_attention):
    def forward(self, x, context, state=None):
        y, state = super().forward(x, context, state)
        return (y * float("nan") if self.layer_idx == 2 else y), state
PARTS["mixer_attention"] = Fault
"""
DETACHED = """
class Fault(ffn_moe):
    def forward(self, x, context):
        y, record = super().forward(x, context)
        return (y.detach() if self.layer_idx == 1 else y), None
PARTS["ffn_moe"] = Fault
"""
FROZEN = """
class Fault(ffn_gated_mlp):
    def forward(self, x, context):
        self.up_proj.weight.requires_grad_(False)
        return super().forward(x, context)
PARTS["ffn_gated_mlp"] = Fault
"""
GRADIENT_NOT_A_NUMBER = """
class Fault(mixer_mamba2):
    def forward(self, x, context, state=None):
        y, state = super().forward(x, context, state)
        if y.requires_grad:
            y.register_hook(lambda g: g * float("inf") * 0)
        return y, state
PARTS["mixer_mamba2"] = Fault
"""
TOO_NARROW = """
class Fault(mixer_attention):
    def forward(self, x, context, state=None):
        y, state = super().forward(x, context, state)
        return (y[..., :-1] if self.layer_idx == 1 else y), state
PARTS["mixer_attention"] = Fault
"""
WRONG_HEAD = """
EulerStackForCausalLM._head = lambda self, x: self.lm_head(x)[..., :-1]
"""
UNSAVED = """
import random
class Fault(mixer_attention):
    def __init__(self, config, layer_idx, **options):
        super().__init__(config, layer_idx, **options)
        self.unsaved = random.random() if layer_idx == 2 else 1.0
    def forward(self, x, context, state=None):
        y, state = super().forward(x, context, state)
        return y * self.unsaved, state
PARTS["mixer_attention"] = Fault
"""
DOWNHILL = """
from .layer import DecoderLayer
class Fault(DecoderLayer):
    def __init__(self, config, i, *args):
        super().__init__(config, i, *args)
        self.i = i
    def forward(self, *args):
        x, *rest = super().forward(*args)
        if x.requires_grad and self.i == 1:
            x.register_hook(lambda g: -10 * g)
        return x, *rest
EulerStackModel.__init__.__globals__["DecoderLayer"] = Fault
"""
FAULTS = {
    "sound": "",
    "saw_future": SAW_FUTURE,
    "forgets": FORGETS,
    "cannot_continue": CANNOT_CONTINUE,
    "not_a_number": NOT_A_NUMBER,
    "detached": DETACHED,
    "frozen": FROZEN,
    "gradient_not_a_number": GRADIENT_NOT_A_NUMBER,
    "too_narrow": TOO_NARROW,
    "wrong_head": WRONG_HEAD,
    "unsaved": UNSAVED,
    "downhill": DOWNHILL,
}
NAMES = [
    "shapes link",
    "loss finite",
    "causal",
    "cached decoding equals full forward",
    "every gradient finite",
    "save and load exact",
    "loss falls within 6 steps",
]


@pytest.fixture(scope="module")
def verdicts(judge, sabotaged) -> dict[str, dict]:
    return judge({name: sabotaged(name, code) for name, code in FAULTS.items()})


def failed(verdict: dict) -> dict[str, str]:
    return {check["name"]: check["detail"] for check in verdict["checks"] if not check["ok"]}


def test_a_sound_model_passes_every_law(verdicts):
    verdict = verdicts["sound"]
    assert verdict["verdict"] == "PASS", verdict["reason"]
    assert verdict["reason"] == ""
    assert [check["name"] for check in verdict["checks"]] == NAMES
    assert all(check["ok"] and check["figure"] and not check["detail"] for check in verdict["checks"])
    assert verdict["training"]["steps"] == 6
    assert verdict["training"]["loss_decreased"]


@pytest.mark.parametrize(
    ("fault", "law", "place"),
    [
        ("too_narrow", "shapes link", "layer 1 (template local): RuntimeError"),
        ("wrong_head", "shapes link", "the head: not (2, 26, 300)"),
        ("not_a_number", "loss finite", "first in layer 2 (template local)"),
        ("saw_future", "causal", "first apart after layer 1 (template local)"),
        ("forgets", "cached decoding equals full forward", "first apart after layer 0 (template state)"),
        ("cannot_continue", "cached decoding equals full forward", "layer 2 (template local): KeyError: 'keys'"),
        ("detached", "every gradient finite", "no gradient: layer 1 (template local): model.layers.1.ffn."),
        ("frozen", "every gradient finite", "no gradient: layer 0 (template state): model.layers.0.ffn.up_proj.weight"),
        ("gradient_not_a_number", "every gradient finite", "not finite: layer 0 (template state): model.layers.0."),
        ("unsaved", "save and load exact", "first apart after layer 2 (template local)"),
        ("downhill", "loss falls within 6 steps", "the gradient of layer 1 (template local) does not point uphill"),
    ],
)
def test_a_fault_fails_its_law_at_its_layer(verdicts, fault, law, place):
    verdict = verdicts[fault]
    assert verdict["verdict"] == "FAIL"
    assert place in failed(verdict)[law]
    assert f"{law}: " in verdict["reason"]
    assert place in verdict["reason"]


@pytest.mark.parametrize(
    ("fault", "laws"),
    [
        ("forgets", {"cached decoding equals full forward"}),
        ("cannot_continue", {"cached decoding equals full forward"}),
        ("detached", {"every gradient finite"}),
        ("frozen", {"every gradient finite"}),
        ("unsaved", {"save and load exact"}),
        ("downhill", {"loss falls within 6 steps"}),
    ],
)
def test_a_fault_fails_nothing_else(verdicts, fault, laws):
    assert set(failed(verdicts[fault])) == laws


def test_without_logits_nothing_else_is_asked(verdicts):
    assert [check["name"] for check in verdicts["too_narrow"]["checks"]] == ["shapes link"]
    assert verdicts["too_narrow"]["training"] is None


def test_a_loss_that_is_not_finite_is_null_in_the_verdict(verdicts):
    assert verdicts["not_a_number"]["training"] == {
        "steps": 1,
        "initial_loss": None,
        "final_loss": None,
        "loss_decreased": False,
    }
