"""Build a model in this interpreter and leave its initialization in a file; needs torch alone, not sigprop.

Run as a script: `python elsewhere.py ORDER RESULT`. ORDER is JSON (`model`, `settings`, `seed`, `batch`), RESULT is
written by `torch.save` and holds plain values and tensors. sigprop runs it with the interpreter of another version.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
SCRATCH_INIT = ("init_weights", "init_states", "initialize_weights")
"""Methods of a whole model that initialize it, by the names that torchtitan, Hugging Face and others use."""


def plain(name: str) -> str:
    for prefix in WRAPPERS:
        name = name.replace(prefix, "")
    return name


def described(model: nn.Module) -> dict[str, Any]:
    """Every parameter once, in the order of registration: values, all its names, its module's class; and buffers."""
    entries: dict[int, dict[str, Any]] = {}
    buffers: dict[str, Any] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        prefix = plain(prefix + "." if prefix else "")
        for key, value in module.named_parameters(recurse=False, remove_duplicate=False):
            entry = entries.setdefault(
                id(value), {"names": [], "values": value.detach(), "kind": type(module).__name__}
            )
            if prefix + key not in entry["names"]:
                entry["names"].append(prefix + key)
        buffers.update({prefix + key: value.detach() for key, value in module.named_buffers(recurse=False)})
    return {"model": type(model).__name__, "parameters": list(entries.values()), "buffers": buffers}


def filled_in(factory: Callable[[], nn.Module]) -> nn.Module:
    """Built on the meta device, given memory, and initialized by the modules' own `reset_parameters`.

    Memory is filled with NaN first, so that what nobody initializes is seen. A method of the whole model that
    initializes it (`init_weights`) is called last.
    """
    with torch.device("meta"):
        model = factory()
    model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.fill_(float("nan"))
        for module in reversed(list(model.modules())):
            reset: Any = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
        for name in SCRATCH_INIT:
            if callable(getattr(model, name, None)):
                getattr(model, name)()
                break
    return model


def moments_of(model: nn.Module, batch: Any) -> dict[str, list[float]]:
    """Mean square of the first output of every module in one forward pass, in the order in which they end."""
    found: dict[str, list[float]] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            while isinstance(output, (tuple, list, dict)) and output:
                output = next(iter(output.values())) if isinstance(output, dict) else output[0]
            if isinstance(output, torch.Tensor) and output.is_floating_point():
                values = output.detach().double()
                found.setdefault(name, []).append(float(values.square().mean()))

        return hook

    handles = [module.register_forward_hook(note(plain(name))) for name, module in model.named_modules()]
    training = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad():
            model(**batch) if hasattr(batch, "keys") else model(*batch) if isinstance(batch, tuple) else model(batch)
    finally:
        for handle in handles:
            handle.remove()
        for module, flag in training:
            module.training = flag
    return found


def factory_of(text: str, settings: dict[str, Any]) -> Callable[[], nn.Module]:
    """`file.py:Name(width=256)`, or the `config.json` of a Hugging Face model."""
    if ".py:" in text:
        file, _, expression = text.partition(".py:")
        path = Path(f"{file}.py")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(path.parent.resolve()))
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)

        def made() -> nn.Module:
            found = eval(expression, vars(module))  # the user's own words about the user's own file
            return found if isinstance(found, nn.Module) else found(**settings)

        return made
    transformers = importlib.import_module("transformers")
    path = Path(text)
    config = transformers.AutoConfig.from_pretrained(path.parent if path.suffix == ".json" else path)
    for key, value in settings.items():
        setattr(config, key, value)
    names = getattr(config, "architectures", None) or ["AutoModelForCausalLM"]
    kind = getattr(transformers, names[0])
    return lambda: (kind.from_config(config) if names[0].startswith("Auto") else kind(config)).eval()


def main(order: str, result: str) -> None:
    wanted = json.loads(Path(order).read_text())
    factory = factory_of(wanted["model"], wanted["settings"])
    random.seed(wanted["seed"])
    torch.manual_seed(wanted["seed"])
    model = filled_in(factory) if wanted["meta"] else factory()
    found = described(model)
    found["parameters"] = [{**entry, "values": entry["values"].contiguous()} for entry in found["parameters"]]
    found["versions"] = {"torch": str(torch.__version__), "python": sys.version.split()[0]}
    if "transformers" in sys.modules:
        found["versions"]["transformers"] = sys.modules["transformers"].__version__
    if wanted["batch"]:
        try:
            found["moments"] = moments_of(model, torch.load(wanted["batch"], weights_only=True))
        except Exception as error:
            found["not_run"] = f"{type(error).__name__}: {error}"
    torch.save(found, result)


if __name__ == "__main__":
    main(*sys.argv[1:3])
