"""Whatever a user gets wrong on the command line is one line that names it, and exit code 2."""

import json

import pytest

from sigprop.cli.app import app, exit_code

NET = "import torch\nfrom torch import nn\n\ndef net(width=4):\n    return nn.Linear(2, width)\n"


def plan_file(field):
    rows = f'[{{"name": "a", "shape": [1], {field}}}]'
    return f'{{"schema_version": 2, "parameters": {rows}, "junctions": [], "scales": [], "meta": {{}}}}'


FILES = {
    "good.py": """
import torch
from torch import nn

def net(width=8, depth=1):
    return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 3))

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(5, width)

    def forward(self, x):
        return self.inner(x)

def batch():
    return torch.randn(4, 5)

number = 3
instance = nn.Linear(5, 5)

def text():
    return "not a module"

def act(x):
    return torch.tanh(x)

def not_elementwise(x):
    return x.softmax(0)

def bad_act(x):
    raise ValueError("my activation is broken")

def numpy_act(x):
    return 3

def other_shape():
    return torch.randn(4, 6)

def no_batch():
    return []

def object_batch():
    return object()
""",
    "syntax.py": "def net(:\n    pass\n",
    "missing_import.py": "import a_package_that_is_not_there\n",
    "raises.py": "import torch\n\ndef net():\n    raise RuntimeError('my factory failed')\n\nbatch = torch.ones(2)\n",
    "needs.py": "from torch import nn\n\ndef net(width):\n    return nn.Linear(2, width)\n",
    "bad_batch.py": NET + "\ndef batch():\n    return 1 / 0\n",
    "no_batch.py": NET,
    "wrong_shape.py": NET + "\ndef batch():\n    return torch.ones(3, 7)\n",
    "forward.py": """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.inner = nn.Linear(2, width)

    def forward(self, x):
        return self.inner(x) + undefined_name

def batch():
    return torch.ones(3, 2)
""",
    "exits.py": "import sys\nsys.exit(4)\n",
    "bad_loss.py": NET + "\nbatch = torch.ones(3, 2)\n\ndef loss(output, batch):\n    return output.no_such_method()\n",
    "nan_batch.py": NET + "\nbatch = torch.full((3, 2), float('nan'))\n",
    "two_inputs.py": NET
    + "\nclass Two(nn.Linear):\n    def forward(self, x, y):\n        return x + y\n\nbatch = torch.ones(2)\n",
    "recursion.py": "def net():\n    return net()\n",
    "loader.py": "from torch.utils.data import DataLoader\nloader = DataLoader([])\n",
    "broken.toml": "[model\n",
    "images.toml": '[model]\nsource = "mlp"\n[train]\nsteps = 1\n',
    "number.toml": '[model]\nsource = "transformer"\n[grid]\n"train.lr" = 0.1\n',
    "not_json.json": "{",
    "list.json": "[1, 2]",
    "no_type.json": '{"layers": 2}',
    "unknown_type.json": '{"model_type": "gptx"}',
    "wrong_type.json": '{"model_type": "gpt2", "n_layer": "many"}',
    "negative.json": plan_file('"lr": -1'),
    "nested.json": plan_file('"init": ' + '{"kind": "blocks", "sizes": [1], "parts": [' * 240 + "{}" + "]}" * 240),
    "refused.json": '{"model_type": "gpt2", "n_embd": 10, "n_head": 3}',
    "damaged/config.json": '{"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 9}',
    "damaged/model.safetensors": "x" * 40,
    "binary.txt": b"\xff\xfe\x00\x01" * 50,
    "short.txt": "ab",
    "empty/notes.md": "nothing here",
    "broken/image.png": "this is no image",
    "endless.json": '{"model_type": "gpt2", "n_layer": 1000000000000000000000000000000}',
    "odd_class.json": '{"model_type": "gpt2", "architectures": [1e308]}',
    "pickled/config.json": '{"model_type": "gpt2"}',
    "pickled/pytorch_model.bin": "x",
    "folder_without_config/readme.md": "x",
}

PREDICT = ("predict", "mlp", "--set", "depth=2", "--set", "width=8")
MEASURE = ("measure", "mlp", "--set", "depth=2", "--set", "width=8")

CASES = [
    # two builds, and a plan for another trainer
    (("diff", "good.py:net"), "needs a second model"),
    (("diff", "good.py:net", "transformer"), "share"),
    (("diff", "good.py:net", "--python", "/no/such/python"), "/no/such/python"),
    (("diff", "good.py:net", "good.py:nte"), "nearest: net"),
    (("diff", "good.py:instance", "--meta"), "has its weights already"),
    (("plan", "good.py:net", "--recipe", "xavier", "--export", "torchtitn"), "nearest: torchtitan"),
    # a command, an option, a value that is none
    (("predcit",), "predict"),
    (("predict",), "model"),
    (("predict", "mlp", "--figrue", "a.png"), "--figure"),
    (("predict", "mlp", "--tokens", "-5"), "--tokens"),
    (("predict", "mlp", "--tokens", "1"), "--tokens"),
    (("predict", "mlp", "--tokens", "many"), "--tokens"),
    (("predict", "mlp", "--networks", "0"), "--networks"),
    (("predict", "mlp", "--seeds", "0", "--measure"), "--seeds"),
    (("predict", "mlp", "extra"), "extra"),
    (("measure", "mlp", "--batch", "0"), "--batch"),
    (("measure", "mlp", "--batch", "-1"), "--batch"),
    (("measure", "mlp", "--seeds", "0"), "--seeds"),
    (("measure", "mlp", "--tokens", "0"), "--tokens"),
    (("coordcheck", "mlp", "--steps", "0"), "--steps"),
    (("coordcheck", "mlp", "--seeds", "-2"), "--seeds"),
    (("coordcheck", "mlp", "--lr", "-0.1"), "--lr = -0.1"),
    (("coordcheck", "mlp", "--lr", "0"), "--lr = 0.0"),
    (("coordcheck", "mlp", "--tolerance", "-1"), "--tolerance"),
    (("coordcheck", "mlp", "--widths", "a,b"), "64,128,256"),
    (("coordcheck", "mlp", "--widths", "-4,8"), "above 0"),
    (("coordcheck", "mlp", "--set", "inputs=0.5", "--widths", "4,8"), "inputs = 0.5"),
    (("measure", "mlp", "--set", "depth=-1"), "depth = -1"),
    (("measure", "mlp", "--set", "depth='a'"), "depth = 'a'"),
    (("measure", "mlp", "--set", "depth=[1]"), "depth = [1]"),
    (("measure", "mlp", "--set", "depth=None"), "depth = None"),
    (("predict", "mlp", "--verify", "3"), "--verify has no use"),
    (("plan", "mlp", "--recipe", "mup", "--base-width", "0"), "--base-width"),
    (("check", "mlp", "--seed", "1e23"), "--seed"),
    (("check", "mlp", "--plan", "negative.json"), "lr = -1"),
    (("check", "mlp", "--plan", "nested.json"), "nested too deeply"),
    (("predict", "refused.json"), "transformers does not take these settings"),
    (("check", "damaged"), "the weights in damaged cannot be read"),
    (("coordcheck", "mlp", "--widths", "8"), "two or more"),
    (("coordcheck", "mlp", "--widths", "8,8"), "two or more"),
    (("coordcheck", "mlp", "--depths", "one"), "--depths"),
    (("coordcheck", "mlp", "--widths", "8,16", "--optimizer", "adamx"), "adamx"),
    (("coordcheck", "mlp", "--widths", "8,16", "--recipe", "mupp"), "mupp"),
    (("coordcheck", "mlp", "--widths", "8,16", "--expect", "mupp"), "mupp"),
    (("coordcheck", "mlp", "--widths", "8,16", "--depth-rule", "cube"), "cube"),
    (("research", "phase", "mlpp"), "mlp"),
    (("research", "phase", "mlp", "--sigma-w", "1:2"), "from:to:count"),
    (("research", "phase", "mlp", "--sigma-w", "3:1:4"), "above its start"),
    (("research", "phase", "mlp", "--sigma-w", "-1:1:4"), "not negative"),
    (("research", "phase", "mlp", "--sigma-w", "1"), "two ranges"),
    (("research", "phase", "mlp", "--residual", "0:2:3", "--sigma-b", "0"), "between 0 and 1"),
    (("research", "phase", "mlp", "--inits", "0"), "--inits"),
    (("research", "phase", "mlp", "--activation", "rleu"), "relu"),
    (("research", "phase", "mlp", "--norm", "layer"), "layer"),
    (("research", "phase", "mlp", "--set", "heads=2"), "--set"),
    (("research", "phase", "vit", "--activation", "relu"), "--activation"),
    (("research", "phase", "mlp", "--measure", "--device", "cuda:9"), "cuda:9"),
    (("research", "phase", "mlp", "--measure", "--device", "gpu"), "gpu"),
    (("critical", "rleu"), "relu"),
    (("critical", "relu", "--norm", "layer"), "layer"),
    (("critical", "relu", "--residual", "2"), "residual"),
    (("critical", "relu", "--set", "slope=2"), "slope"),
    (("critical", "relu", "--stages", "0"), "stages"),
    (("research", "exponents", "muPP"), "muPP"),
    (("research", "exponents", "a=1;b=2"), "needs three"),
    (("research", "exponents", "SP", "--depth", "-1"), "--depth"),
    (("research", "reproduce", "dslm-table20", "--device", "tpu"), "--device tpu"),
    (("research", "exponents", "SP", "--optimizer", "adamx"), "adamx"),
    (("research", "exponents", "SP", "--alignment", "half"), "half"),
    (("plan", "mlp"), "--recipe"),
    (("plan", "mlp", "--recipe", "unti"), "unit"),
    (("plan", "transformer", "--set", "depth=1", "--recipe", "unit", "--option", "colour=red"), "colour"),
    (("plan", "mlp", "--recipe", "mup"), "base"),
    (("plan", "mlp", "--recipe", "deepnorm"), "deepnorm"),
    (("check", "mlp", "--fail-on", "sometimes"), "never"),
    (("check", "mlp", "--html", "empty"), "is a folder"),
    (("check", "mlp", "--fix", "/proc/plan.json"), "cannot be written"),
    (("check", "mlp", "--lr", "-1"), "lr = -1"),
    (("check", "mlp", "--optimizer", "adamx"), "adamax"),
    (("check", "mlp", "--optimizer", "muon"), "momentum"),
    (("check", "mlp", "--plan", "list.json"), "needs an object"),
    (("check", "nan_batch.py:net"), "not finite"),
    (("check", "two_inputs.py:Two(2, 2)"), "forward(x, y)"),
    (("research", "train", "transformer", "--train", "lr=-1"), "lr = -1"),
    (("research", "train", "transformer", "--train", "colour=red"), "colour"),
    (("research", "train", "transformer", "--train", "steps=0"), "steps = 0"),
    (("research", "train", "transformer", "--text", "missing.txt"), "no text file"),
    (("research", "train", "vit", "--train", "steps=1", "--quiet"), "ViT failed on the batch"),
    (("research", "sweep", "run", "nowhere.toml", "out"), "cannot be read"),
    (("research", "sweep", "run", "broken.toml", "out"), "not TOML"),
    (("research", "sweep", "run", "number.toml", "out"), "needs a list"),
    (("research", "sweep", "run", "images.toml", "out", "--quiet"), "MLP failed on the batch"),
    (("research", "sweep", "show", "nowhere"), "no results"),
    (("research", "sweep", "show", "empty"), "no results"),
    (("research", "phase", "mlp", "--measure", "--quiet", "--resume", "list.json"), "no run that could be continued"),
    (("critical", "good.py"), "good.py:function"),
    (("critical", "relu", "--residual", "nan"), "residual"),
    (("predict", ""), "model = ''"),
    (("predict", "recursion.py:net"), "recursion.py, line 2, in net: RecursionError"),
    (("predict", "loader.py:loader"), "DataLoader"),
    (("measure", "good.py:net", "--data", "loader.py:loader"), "empty"),
    # settings
    (("predict", "transfromer"), "transformer"),
    (("predict", "transformer", "--set", "depth"), "key=value"),
    (("predict", "transformer", "--set", "=3"), "key=value"),
    (("predict", "transformer", "--set", "depth=2", "--set", "depth=3"), "twice"),
    (("predict", "transformer", "--set", "dpeth=2"), "depth"),
    (("predict", "transformer", "--set", "heads=7"), "heads = 7"),
    (("predict", "transformer", "--set", "dropout=1.5"), "dropout = 1.5"),
    (("predict", "mlp", "--set", "sigma_w=nan"), "sigma_w"),
    (("predict", "mlp", "--set", "activation=rleu"), "relu"),
    (("measure", "mlp", "--set", "widht=3"), "width"),
    # models
    (("predict", "nowhere.json"), "no config at"),
    (("predict", "endless.json"), "num_hidden_layers"),
    (("predict", "damaged/config.json", "--set", "n_layer=1000000000"), "num_hidden_layers"),
    (("predict", "odd_class.json"), "transformers does not take these settings"),
    (("predict", "nowhere.py:net"), "no file at"),
    (("predict", "no/such-model"), "hf download"),
    (("predict", "not_json.json"), "not JSON"),
    (("predict", "list.json"), "model_type"),
    (("predict", "no_type.json"), "model_type"),
    (("predict", "unknown_type.json"), "gpt2"),
    (("predict", "wrong_type.json"), "wrong_type.json"),
    (("predict", "binary.txt:net"), "model"),
    (("predict", "pickled"), "pickles"),
    (("predict", "folder_without_config"), "no config at"),
    (("predict", "good.py:nett"), "net"),
    (("predict", "good.py:number"), "int"),
    (("predict", "good.py:text"), "returned str"),
    (("predict", "good.py:net(width=open('x'))"), "plain values"),
    (("predict", "good.py:net("), "plain values"),
    (("predict", "good.py:"), "plain values"),
    (("predict", "good.py:net(widht=3)"), "widht"),
    (("predict", "good.py:Model"), "width"),
    (("predict", "good.py:instance", "--set", "width=3"), "no settings"),
    (("measure", "good.py:instance", "--seeds", "3"), "fixed weights"),
    (("coordcheck", "good.py:instance"), "one size"),
    (("coordcheck", "no_batch.py:net"), "batch()"),
    # the user's own code
    (("predict", "syntax.py:net"), "syntax.py, line 1"),
    (("predict", "missing_import.py:net"), "missing_import.py, line 1"),
    (("predict", "raises.py:net"), "raises.py, line 4, in net: RuntimeError: my factory failed"),
    (("measure", "raises.py:net"), "raises.py, line 4"),
    (("predict", "needs.py:net"), "width"),
    (("predict", "bad_batch.py:net"), "bad_batch.py, line 8, in batch: ZeroDivisionError"),
    (("measure", "bad_batch.py:net"), "bad_batch.py, line 8"),
    (("measure", "no_batch.py:net"), "batch()"),
    (("measure", "wrong_shape.py:net"), "3x7"),
    (("measure", "forward.py:Net"), "forward.py, line 11, in forward"),
    (("predict", "forward.py:Net"), "undefined_name"),
    (("predict", "exits.py:net"), "exits.py, line 2"),
    (("measure", "bad_loss.py:net"), "bad_loss.py, line 10, in loss"),
    (("critical", "good.py:not_elementwise"), "elementwise"),
    (("critical", "good.py:bad_act"), "my activation is broken"),
    (("critical", "good.py:numpy_act"), "int"),
    (("critical", "good.py:number"), "int"),
    # data
    (("measure", "transformer", "--set", "depth=1", "--data", "missing.txt"), "no text file"),
    (("measure", "transformer", "--set", "depth=1", "--data", "binary.txt"), "UTF-8"),
    (("measure", "transformer", "--set", "depth=1", "--data", "short.txt"), "2 bytes"),
    (("measure", "vit", "--set", "depth=1", "--data", "empty"), "no image in empty"),
    (("measure", "vit", "--set", "depth=1", "--data", "broken"), "image.png cannot be read"),
    (("measure", "good.py:net", "--data", "good.py:no_such"), "no_such"),
    (("measure", "good.py:net", "--data", "good.py:object_batch"), "object"),
    (("measure", "mlp", "--set", "depth=2", "--sites", "blocks.9"), "blocks"),
    # outputs, tried before the work
    ((*PREDICT, "--figure", "figure.txt"), ".png"),
    ((*PREDICT, "--figure", "figure"), ".png"),
    ((*PREDICT, "--figure", "empty"), ".png"),
    ((*PREDICT, "--figure", "short.txt/figure.png"), "cannot be written"),
    ((*PREDICT, "--figure", "/proc/figure.png"), "cannot be written"),
    ((*MEASURE, "--figure", "figure.doc"), ".png"),
    (("plan", "mlp", "--recipe", "xavier", "--out", "empty"), "is a folder"),
    (("plan", "mlp", "--recipe", "xavier", "--out", "short.txt/plan.json"), "cannot be written"),
    (("research", "phase", "mlp", "--figure", "figure.doc"), ".png"),
    (("demo", "--out", "short.txt"), "cannot be written"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("wrong")
    for name, content in FILES.items():
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def test_there_are_a_hundred():
    assert len(CASES) >= 100
    assert len({case[0] for case in CASES}) == len(CASES)


@pytest.mark.parametrize(("arguments", "words"), CASES, ids=[" ".join(case[0]) for case in CASES])
def test_one_line_and_exit_code_2(folder, monkeypatch, capsys, arguments, words):
    if any(name.endswith((".json", "pickled", "such-model")) for name in arguments[1:2]):
        pytest.importorskip("transformers")
    monkeypatch.chdir(folder)
    code = exit_code(app, list(arguments))
    shown = capsys.readouterr()
    assert code == 2, shown.err
    assert len(shown.err.strip().splitlines()) == 1, shown.err
    assert shown.out == ""
    assert words in shown.err


def test_a_version_that_cannot_be_installed_is_one_line(folder, tmp_path, monkeypatch, capsys):
    """As without a network: pip finds no such package. What was begun is not taken for an environment later."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert exit_code(app, ["diff", "good.py:net", "--with", "transformers==4.57"]) == 2
    shown = capsys.readouterr()
    assert len(shown.err.strip().splitlines()) == 1, shown.err
    assert "pip could not install transformers==4.57" in shown.err
    assert not list(tmp_path.rglob(".ready"))


def test_a_fault_of_ours_has_another_code(monkeypatch, capsys):
    monkeypatch.setattr("sigprop.plans.recipes.RECIPES", None)
    assert exit_code(app, ["recipes"]) == 70
    assert "AttributeError" in capsys.readouterr().err


def test_findings_have_another_code(capsys):
    assert exit_code(app, ["research", "exponents", "SP", "--alignment", "readout", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["regime"] == "unstable"
