"""The interpreter: forward and backward moments of any nn.Module, parameters on the meta device, op by op.

Layers from the ground up; a file imports only from its own layer and those before, and a test holds it to that.

1. Tensors: `noise`, `layout`, `record`, `functions`.
   Of each traced tensor which axes are positions and which channels, and what made it.
2. Random numbers: `ensemble`, `replay`, `replayed_heads`, `replayed_function`.
   Sampled from predicted states by replaying the model's functions, for ops that are evaluated so.
3. Run: `capture`. What a run has found: the graph, records, sites; rules and passes by name.
4. Rules: `rules/`. One file per family of torch functions, with how its results are made.
5. Forward: `mode`, `experts_as_one`, `jump`, `repeated_blocks`. The model's own forward, every call handed to its rule.
6. Gradients: `sampled_loss`, `gradient_start`. Where the gradient of a loss starts.
7. Traced models: `tracing`, `roles`, `identical_sequences`. One run as a value, and what is asked of it.
8. Profiles: `rows`, `skipped_rows`, `long_contexts`, `predict`. All of it as rows.
"""

from sigprop.capture.capture import Capture, rule
from sigprop.capture.predict import predict
from sigprop.capture.record import Call, Field, Weight
from sigprop.capture.tracing import TracedModel, trace
from sigprop.distributions import build, distribution

__all__ = ["Call", "Capture", "Field", "TracedModel", "Weight", "build", "distribution", "predict", "rule", "trace"]
