"""Declarative stacks built of theory ops; no nn.Module is made.

`BLUEPRINTS` lists them by name; `predict(blueprint)` returns a `Profile`.
"""

from sigprop.blueprints.base import Blueprint, run
from sigprop.blueprints.mixer import Mixer
from sigprop.blueprints.mlp import MLP
from sigprop.blueprints.prediction import predict
from sigprop.blueprints.resnet import ResNet
from sigprop.blueprints.transformer import Transformer
from sigprop.blueprints.vit import ViT

BLUEPRINTS: dict[str, type[Blueprint]] = {kind.name: kind for kind in (Transformer, ViT, MLP, ResNet, Mixer)}

__all__ = ["BLUEPRINTS", "MLP", "Blueprint", "Mixer", "ResNet", "Transformer", "ViT", "predict", "run"]
