"""The `llm_` presets of at most 2 B parameters, at full size. Run with RUN_LLM_E2E=1; `--llm-presets` chooses."""

SUITE = "llm"


def test_a_preset_passes_at_full_size(preset, check_at_full_size):
    verdict = check_at_full_size(preset)
    assert verdict["verdict"] == "PASS", verdict["reason"]
    assert verdict["training"]["loss_decreased"]
