"""The `arch_` presets that are no minis, at full size. Run with RUN_ARCH_E2E=1; `--arch-presets` chooses."""

SUITE = "arch"


def test_a_preset_passes_at_full_size(preset, check_at_full_size):
    verdict = check_at_full_size(preset)
    assert verdict["verdict"] == "PASS", verdict["reason"]
    assert verdict["training"]["loss_decreased"]
