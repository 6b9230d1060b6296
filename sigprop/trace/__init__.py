"""The interpreter: forward and backward moments of any nn.Module, parameters on the meta device, op by op.

| file | what it does |
|---|---|
| `skeleton` | a model without its weights, with the distribution of each |
| `capture` | runs the model's own forward and records what depends on parameters |
| `layout` | which axes are positions and which are channels, through every view |
| `record`, `replay` | what is known of a tensor; drawing it by replaying the model's functions |
| `rules/` | one file per family of torch functions |
| `sampled` | functions without a closed form, by Monte Carlo |
| `gradient_start`, `loss_terms`, `sampled_loss` | where the gradient starts: noise, closed forms, any loss drawn |
| `evaluate`, `reading` | laws in, states out: the captured graph is only read |
| `roles` | how each parameter is used |
| `predict` | all of it as a `Profile` |
"""

from sigprop.trace.predict import predict
from sigprop.trace.registry import rule
from sigprop.trace.skeleton import build, distribution
from sigprop.trace.tracing import TracedModel, trace

__all__ = ["TracedModel", "build", "distribution", "predict", "rule", "trace"]
