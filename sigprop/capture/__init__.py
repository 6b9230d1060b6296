"""The interpreter: forward and backward moments of any nn.Module, parameters on the meta device, op by op.

Layers from the ground up; a file imports only from its own layer and those before, and a test holds it to that.

1. Tensors: `passes`, `layout`, `skeleton`, `record`, `attached`, `functions`, `shapes`, `broadcast`.
   A model without its weights; of each traced tensor which axes are positions and which channels, and what made it.
2. Draws: `joint`, `ensemble`, `replay`, `thinning`, `reverse`, `replayed_heads`,
   `replayed_function`. Numbers drawn from predicted states by replaying the model's functions, for drawn ops.
3. Run: `module_sites`, `capture`. What a run has found: the graph, records, sites.
4. Results: `registry`, `derived_weights`, `sums`, `fields/`. What rules share: how a result is made.
5. Rules: `rules/`. One file per family of torch functions.
6. Forward: `aliases`, `mode`, `experts`, `alike_blocks`, `jump`, `repeated`.
   The model's own forward, every call of it handed to its rule.
7. Gradients: `loss_terms`, `sampled_loss`, `gradient_start`. Where a gradient starts.
8. Traced models: `tracing`, `roles`, `attention_scores`, `sequences`. One run as a value, and what is asked of it.
9. Profiles: `inputs`, `length`, `summaries`, `rows`, `skipped_rows`, `predict`. All of it as rows.
"""

from sigprop.capture.capture import Capture
from sigprop.capture.predict import predict
from sigprop.capture.record import Call, Field, Weight
from sigprop.capture.registry import rule
from sigprop.capture.skeleton import build, distribution
from sigprop.capture.tracing import TracedModel, trace

__all__ = ["Call", "Capture", "Field", "TracedModel", "Weight", "build", "distribution", "predict", "rule", "trace"]
