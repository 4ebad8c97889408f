"""The minis, `arch_*_mini`, at full size. Run with RUN_EXPERT_MINI_E2E=1; `--mini-presets` chooses."""

SUITE = "mini"


def test_a_preset_passes_at_full_size(preset, check_at_full_size):
    verdict = check_at_full_size(preset)
    assert verdict["verdict"] == "PASS", verdict["reason"]
    assert verdict["training"]["loss_decreased"]
