"""A watch where people train: one thin file per library, each imported only by those who use it.

| | |
|---|---|
| `sigprop.integrations.transformers` | `WatchCallback` for the Hugging Face `Trainer` |
| `sigprop.integrations.lightning` | `WatchCallback` for the Lightning `Trainer` |
| `sigprop.integrations.accelerate` | `watch_accelerated` for loops written with Accelerate |
| `sigprop.integrations.checkpoints` | a plan beside the checkpoint it belongs to, and found again |

DDP, FSDP2 and device meshes need none of these: `Watch` reads them from the model.
"""
