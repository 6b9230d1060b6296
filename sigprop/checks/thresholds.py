"""Every threshold of every finding, with its reason. Nothing else in this package holds a number that decides."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Threshold:
    value: float
    reason: str


THRESHOLDS = {
    # the draw itself
    "odd_factor": Threshold(
        50.0,
        "std of some layers over the others: by training (docs/evidence/severity.md) factors of 3 to 30 end 4 to 9 % "
        "above, a factor of 100 ends 16 % above",
    ),
    "level": Threshold(
        2.5,
        "root mean square of what a matrix makes, or its inverse: torch's own, 3^-1/2, is within it behind a ReLU",
    ),
    "small_effect": Threshold(
        0.01,
        "a change of the weights that moves a hundredth of the output's variance, 0.1 in "
        "scale, is within what two seeds of one initialization differ by",
    ),
    "most_trials": Threshold(10, "changes tried for one finding: each costs a forward and a backward pass"),
    "false_alarm": Threshold(
        1e-6,
        "chance, per model and per kind of test, that sampling alone makes a finding; divided by the number of tests "
        "(Bonferroni). 35 kinds over 300 healthy models then give 0.01 expected false alarms",
    ),
    "draw_factor": Threshold(
        1.15,
        "a standard deviation that differs less from its siblings changes a variance by less than a third, as much as "
        "published recipes differ among themselves; finite samples are far more exact than that",
    ),
    "near_default": Threshold(
        2.5, "std times sqrt(fan_in) of a layer left at torch's default, beside the others: He's is 2.45 times it"
    ),
    "draw_alike": Threshold(1.03, "members of a family within 3 % are taken as initialized with one distribution"),
    "draw_majority": Threshold(0.6, "share of a family that must agree before the rest is called odd"),
    "fewest_entries": Threshold(64, "below that many entries a sample says little about its distribution"),
    "known_factor": Threshold(1.03, "a ratio within 3 % of sqrt(2 L), sqrt(fan_in), ... is named so"),
    # signal
    "stream_growth": Threshold(
        1e3, "variance of the stream, last block over first (or inverse): 30 in scale; fp16 training has 2^16 in all"
    ),
    "stream_growth_problem": Threshold(1e8, "10^4 in scale: half of all digits of float32 and all of bf16's reserve"),
    "stream_rate": Threshold(
        1.3,
        "factor of the variance per block: a stream that is multiplied by more at every block doubles each third block "
        "and has no depth it can be extended to; Pre-LN grows by addition, a factor that falls like 1 + 1/l",
    ),
    "drowned_branch": Threshold(
        1e-6, "variance of a branch over its skip: below 1e-6 its contribution is lost in bf16 (8 bits squared: 1.5e-5)"
    ),
    "small_scale": Threshold(
        0.1, "a constant at the end of a branch below this is a scale that starts small on purpose"
    ),
    "silent_share": Threshold(
        0.5, "with more than half of the branches silent the model is a readout of its embedding"
    ),
    "largest_edit": Threshold(
        100.0,
        "factor on a matrix that is still a fix: what is off by more is made small or large by what the matrix reads",
    ),
    "drowning_branch": Threshold(
        100.0, "variance of a branch over its skip: the skip is a tenth of the scale and no longer carries the gradient"
    ),
    "embedding_ratio": Threshold(
        50.0,
        "variance of position over token embedding or inverse: by training 12 costs nothing, 100 to 110 ends 8 to 21 % "
        "above",
    ),
    "embedding_ratio_problem": Threshold(500.0, "by training 900 to 1,200 end 21 to 29 % above"),
    "start_ratio": Threshold(
        1e3, "variance of the first branch over the embedding that it is added to: tokens are 3 % of the stream's scale"
    ),
    "same_output": Threshold(
        1e-8,
        "share of the output's mean square that another input, or another position, changes: 1e-4 in scale, what "
        "bf16 rounds away (2^-9 = 2e-3) and float32 (6e-8) can hardly tell from a constant",
    ),
    "dropout": Threshold(
        0.9, "share of entries dropped: the noise p / (1 - p) it adds is nine times the signal's own variance"
    ),
    "epsilon": Threshold(
        1.0, "epsilon over the variance that the norm reads: from one on it divides by a constant, not by the signal"
    ),
    "norm_output": Threshold(
        3.0, "mean square behind a norm over that of its gain: one by definition; a batch of a few positions makes 1.5"
    ),
    "equal_logits": Threshold(
        1e-3,
        "variance of logits that are products of two signals, and cannot grow by a readout of their own: the "
        "gradient of all that makes them is smaller by its root, and cosines times 0.07 have 1e-3",
    ),
    "gate_shut": Threshold(
        1e-3,
        "mean of a sigmoid: what it lets through has a millionth of the variance; published gates start at "
        "sigmoid(-3) = 0.05 (highway) and above",
    ),
    "gate_slope": Threshold(
        4e-3, "slope of a sigmoid over that at zero, on average: +-6.9 in what it reads; a focal prior of 0.01 has 0.04"
    ),
    "large_input": Threshold(
        30.0, "root mean square of an input, and of what the first matrix makes of it: pixels of 0 to 255 have 145"
    ),
    "small_input": Threshold(
        1e-4, "root mean square of an input: a normalized adjacency of 10,000 nodes has 4e-3, sound 0.01 to 0.1"
    ),
    "training_noise": Threshold(
        0.8, "share of the output's variance that another seed changes: dropout of 0.5 behind a hidden layer makes half"
    ),
    "busy_options": Threshold(
        0.25, "share of the options (experts) that nine tenths of all choices fall on: random routers choose evenly"
    ),
    "dead_share": Threshold(0.9, "share of units that are zero (or saturated) at once on almost every token"),
    "saturated_share": Threshold(0.5, "share of entries of a bounded activation beyond 95 % of its bound"),
    "massive_channel": Threshold(
        0.5, "share of the stream's variance in one channel; for random weights the largest share is about ln(n) / n"
    ),
    # gradient
    "gradient_ratio": Threshold(
        100.0, "gradient variance, first block over last (or inverse): a factor 10 in scale, beyond one learning rate"
    ),
    "gradient_ratio_problem": Threshold(
        1e4, "a factor 100 in scale: one end of the network trains, the other does not"
    ),
    "update_ratio": Threshold(1.0, "first update over weight, root mean square: the step is the weight itself"),
    "update_nothing": Threshold(
        1e-7, "below float32's half unit in the last place (6e-8) the first updates are rounded away"
    ),
    "sensitivity": Threshold(
        math.log(100.0),
        "branch over skip, summed over the sums that a norm reads: exp(-4.6) of the variance still comes along the "
        "skips, a tenth in scale, as little as behind one branch that drowns its skip. BERT has 2.1 with 12 layers and "
        "9.7 with 48, BERT-large, which needs its warm-up, 8.8; unit and deepscale 2 to 4 at any depth",
    ),
    "sensitivity_problem": Threshold(math.log(1e8), "10^4 in scale, as for the stream: Xavier with 24 layers and more"),
    # tokens
    "rank_collapse": Threshold(
        0.9,
        "token correlation: cosine above 0.9 leaves a tenth of the variance to tokens; by training "
        "(docs/evidence/stock.md) 0.92 ends 2 to 3 % above, 0.97 3 to 5 %, 0.99 7 to 8 %, "
        "0.999 19 to 25 %",
    ),
    "rank_collapse_problem": Threshold(
        0.99, "attention's gradient falls like 1 - correlation (dslm, App. F): 1 % of it is left"
    ),
    "scores_large": Threshold(
        5.0,
        "variance of the scores over keys: by training 4.0 ends 2 % above (Gemma), 6.5 ends 9 to 19 % above (GPT-2, "
        "Llama, T5)",
    ),
    "attention_saturated": Threshold(0.5, "average largest weight among 16 or more keys: the softmax is near one-hot"),
    "attention_sharp": Threshold(
        0.25, "average largest weight below which scores of any variance leave most of the weight to other keys"
    ),
    "one_hot": Threshold(0.9, "average largest weight of a softmax that is no attention: a router, a choice"),
    "fixed_scores": Threshold(0.9, "share of the variance of scores that another input leaves as it is"),
    "leak": Threshold(1e-6, "share of earlier outputs that a later token changes: 1e-3 in scale, far above rounding"),
    "small_gains": Threshold(
        0.5,
        "gains of most norms: by training 0.1 to 0.3 ends 15 to 41 % above in Post-LN stacks and ResNets, "
        "0 to 5 % above where norms stand in front of branches; published models start at 1",
    ),
    "large_gain": Threshold(
        20.0, "std times sqrt(fan_in): one matrix multiplies the variance by 400; published ones lie between 0.1 and 3"
    ),
    "noise_gradient": Threshold(
        1e-13, "mean square of a gradient over that of the median matrix: rounding of float32 alone makes 4e-15"
    ),
    "detached_steps": Threshold(
        8, "calls of detach in one module and pass: vector quantization and targets make 1 to 4"
    ),
    "exponent": Threshold(9.0, "median of what an exponential reads: e^9 = 8e3; published scales start below e^5"),
    # output
    "read_by_readout": Threshold(
        10.0, "logit variance over (std^2 fan_in) of the readout: what it reads has that mean square; a norm makes 1"
    ),
    "loss_over_zero": Threshold(
        30.0, "squared error over that of zeros: outputs of 5 times the scale of what is wanted"
    ),
    "initial_loss": Threshold(
        1.0, "initial cross entropy above ln(classes): random logits of variance s2 give ln(classes) + s2 / 2"
    ),
    "initial_loss_problem": Threshold(
        5.0, "logits of standard deviation 3 and more: the first steps only undo them (logit variance 10)"
    ),
    # wiring
    "drowned_part": Threshold(
        100.0, "root mean squares of two parts: by training 10 between positions and words costs 8 to 21 % of the loss"
    ),
    "divisor_signs": Threshold(0.02, "share of divisors of the rarer sign: so many pass zero on the way to the other"),
    "unread_input": Threshold(0.2, "share of the places of an input, more than any rounding of sizes leaves out"),
    "targets_beyond": Threshold(
        0.1, "share of targets that an activation cannot make, above rounding and few outliers"
    ),
    "skip_factor": Threshold(0.75, "factor of a skip over that of its branch: below it the branch is what is kept"),
    # precision
    "precision_share": Threshold(0.1, "share of entries that under- or overflow: a tenth of a tensor is lost"),
    "precision_overflow": Threshold(1e-3, "share of entries above the largest number: one is enough for inf in a sum"),
    "rounding": Threshold(
        0.05,
        "share of the output that bf16's rounding changes: one module makes 1e-6, so that each such change was "
        "multiplied by 10^4; two runs that round differently start as two models",
    ),
    # criticality
    "criticality_growth": Threshold(
        1e4, "squared Jacobian over all blocks (or inverse): 100 in scale; see apjn, section 2"
    ),
    # theory and measurement
    "banded": Threshold(
        1.5,
        "factor between predicted and measured from which on other initializations are measured too: the lines of a "
        "chart lie visibly apart, and a reader asks which is right",
    ),
    "disagreement": Threshold(
        4.0, "factor between predicted and measured variance of the stream that one initialization does not explain"
    ),
    "disagreement_share": Threshold(0.25, "share of the blocks at which they disagree"),
    # sizes
    "width_exponent": Threshold(
        0.25, "difference of a standard deviation's width exponent from its rule: 2^0.25 per doubling"
    ),
}


def limit(name: str) -> float:
    return THRESHOLDS[name].value
