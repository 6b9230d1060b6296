"""Numbers that decide stand in one file, each with its reason; a tenfold change is noticed here."""

from sigprop.checks import THRESHOLDS

KNOWN = {
    "odd_factor": 50,
    "small_effect": 0.01,
    "most_trials": 10,
    "false_alarm": 1e-06,
    "draw_factor": 1.15,
    "draw_alike": 1.03,
    "draw_majority": 0.6,
    "fewest_entries": 64,
    "known_factor": 1.03,
    "stream_growth": 1000,
    "stream_growth_problem": 1e08,
    "stream_rate": 1.3,
    "drowned_branch": 1e-06,
    "small_scale": 0.1,
    "silent_share": 0.5,
    "largest_edit": 100,
    "drowning_branch": 100,
    "embedding_ratio": 50,
    "embedding_ratio_problem": 500,
    "start_ratio": 1000,
    "same_output": 1e-08,
    "dropout": 0.9,
    "epsilon": 1,
    "gate_shut": 0.001,
    "busy_options": 0.25,
    "dead_share": 0.9,
    "saturated_share": 0.5,
    "massive_channel": 0.5,
    "gradient_ratio": 100,
    "gradient_ratio_problem": 10000,
    "update_ratio": 1,
    "update_nothing": 1e-07,
    "sensitivity": 4.60517,
    "sensitivity_problem": 18.4207,
    "rank_collapse": 0.9,
    "rank_collapse_problem": 0.99,
    "scores_large": 5,
    "attention_saturated": 0.5,
    "initial_loss": 1,
    "initial_loss_problem": 5,
    "precision_share": 0.1,
    "precision_overflow": 0.001,
    "criticality_growth": 10000,
    "disagreement": 4,
    "disagreement_share": 0.25,
    "width_exponent": 0.25,
    "near_default": 2.5,
    "gate_slope": 0.004,
    "large_input": 30,
    "training_noise": 0.8,
    "attention_sharp": 0.25,
    "one_hot": 0.9,
    "fixed_scores": 0.9,
    "leak": 1e-06,
    "large_gain": 20,
    "small_gains": 0.5,
    "noise_gradient": 1e-13,
    "detached_steps": 8,
    "exponent": 9,
    "read_by_readout": 10,
    "loss_over_zero": 30,
    "norm_output": 3,
    "equal_logits": 0.001,
    "rounding": 0.05,
    "banded": 1.5,
}


def test_a_tenfold_change_is_noticed():
    assert set(THRESHOLDS) == set(KNOWN)
    for name, threshold in THRESHOLDS.items():
        assert 0.2 < threshold.value / KNOWN[name] < 5, name


def test_every_number_has_a_reason():
    assert all(len(threshold.reason.split()) > 6 for threshold in THRESHOLDS.values())
