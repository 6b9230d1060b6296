"""Eight threads that predict, measure, plan, check and watch give what one thread gives, bit for bit."""

import copy
import gc
import importlib
import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import sigprop as sp
from sigprop.models import build
from sigprop.monitoring import Watch
from tests.robustness.scale import cases

THREADS = 8
DRAWS = cases(2, 6)
IDS = torch.arange(16).reshape(2, 8) % 29
IMAGES = torch.linspace(-2, 2, 2 * 3 * 8 * 8).sin().reshape(2, 3, 8, 8)
SMALL = {"vocabulary": 29, "context": 8, "width": 16, "depth": 2, "heads": 2}


def seeded(make):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


def perceptron():
    return nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Dropout(0.1), nn.Linear(24, 5))


class Convolutional(nn.Sequential):
    def __init__(self):
        norm = nn.BatchNorm2d(6)
        super().__init__(nn.Conv2d(3, 6, 3), norm, nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(54, 4))


def llama():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=16, intermediate_size=24, num_attention_heads=2, vocab_size=29
    )
    transformers.LlamaForCausalLM(config)  # transformers itself adds a method to nn.Module the first time
    return config


def jobs():
    """Name -> a function that gives text; models are made here, in one thread, each job with its own."""
    x = torch.linspace(-1, 1, 48).reshape(4, 12)
    found = {}
    for number in range(cases(1, 2)):
        transformer = seeded(lambda: build("transformer", **SMALL))
        other = seeded(lambda: build("transformer", **SMALL, norm_placement="post"))
        mlp, images = seeded(perceptron), seeded(Convolutional)
        config = llama()
        base = build("transformer", **{**SMALL, "width": 8})  # a job of its own would draw from the random state of all
        found |= {
            f"predict transformer {number}": lambda model=transformer: sp.predict(model, IDS, verify=DRAWS).to_json(),
            f"predict perceptron {number}": lambda model=mlp: sp.predict(model, x, seed=1, verify=DRAWS).to_json(),
            f"predict images {number}": lambda model=images: sp.predict(model, IMAGES, verify=DRAWS).to_json(),
            f"predict config {number}": lambda config=config: sp.predict(config, IDS, verify=DRAWS).to_json(),
            f"measure transformer {number}": lambda model=other: sp.measure(model, IDS).to_json(),
            f"measure seeds {number}": lambda: sp.measure(None, x, build=perceptron, seeds=2).to_json(),
            f"plan {number}": lambda model=other: sp.plan(model, "unit", batch=IDS, k=0.25).to_json(),
            f"plan width {number}": lambda model=transformer, base=base: sp.plan(model, "mup", base=base).to_json(),
            f"check {number}": lambda model=mlp: checked(model, x),
            f"watch {number}": lambda model=transformer: watched(model),
        }
    return found


def checked(model, batch):
    report = sp.check(model, batch, prescription=False)
    del report.meta["seconds"]
    return report.to_json()


def watched(model):
    """What a watch tells of four steps of a copy, and the weights after them."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Watch(model, every=2) as watch:
        for _ in range(4):
            loss = nn.functional.cross_entropy(model(IDS).flatten(0, 1), IDS.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.step(loss)
    return json.dumps([[sample.step, sample.sites, sample.parameters] for sample in watch.history]) + str(
        [float(parameter.detach().double().sum()) for parameter in model.parameters()]
    )


def process_state():
    """What a call could leave behind in the process."""
    functional = {name: value for name, value in vars(nn.functional).items() if callable(value)}
    module = nn.modules.module
    hooks = [len(getattr(module, name)) for name in vars(module) if name.startswith("_global_") and "hooks" in name]
    return (
        functional,
        hooks,
        dict(vars(nn.Module)),
        dict(vars(nn.Parameter)),
        dict(vars(nn.init)),
        dict(vars(torch.autograd.function)),
        torch.backends.mkldnn.matmul.fp32_precision,
        gc.isenabled(),
        torch.is_grad_enabled(),
        nn.LayerNorm(2).weight.device,
    )


def test_threads_give_what_one_thread_gives_and_leave_the_process_as_it_was():
    work = jobs()
    state, numbers = process_state(), random.getstate()
    expected = {name: job() for name, job in work.items()}
    order = list(work) * cases(1, 8)
    random.Random(0).shuffle(order)
    start = threading.Barrier(THREADS)

    def run(names):
        start.wait()
        return [(name, work[name]()) for name in names]

    with ThreadPoolExecutor(THREADS) as pool:
        shares = [order[number::THREADS] for number in range(THREADS)]
        found = [item for share in pool.map(run, shares) for item in share]
    assert len(found) == len(order)
    assert [name for name, text in found if text != expected[name]] == []
    assert process_state() == state
    assert random.getstate() == numbers


def test_one_model_in_many_threads():
    """The same model, measured and predicted at once: hooks and gradients of one call are not seen by another."""
    model = seeded(lambda: build("transformer", **SMALL))
    alone = sp.measure(model, IDS).to_json(), sp.predict(model, IDS, verify=DRAWS).to_json()
    with ThreadPoolExecutor(THREADS) as pool:
        both = (sp.measure, lambda *given: sp.predict(*given, verify=DRAWS))
        calls = [pool.submit(both[number % 2], model, IDS) for number in range(cases(8, 64))]
    assert {call.result().to_json() for call in calls} == set(alone)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_watch_leaves_torchs_table_of_hooks_alone():
    """While another thread steps it may not change: the first watch of a process writes to it, no other does."""
    hooks, seen = importlib.import_module("torch.optim.optimizer")._global_optimizer_pre_hooks, []
    for _ in range(2):
        model = seeded(perceptron)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Watch(model, every=1) as watch:
            optimizer.step()
            watch.step(torch.ones(()))
            seen.append(list(hooks))
        seen.append(list(hooks))
    assert seen[0]
    assert all(keys == seen[0] for keys in seen)
