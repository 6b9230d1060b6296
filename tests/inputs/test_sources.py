"""What people bring: files, configs, checkpoint folders, texts, images, loaders."""

import json

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sigprop
from sigprop.batches import first_batch
from sigprop.errors import InputError, UnknownNameError, UnsupportedError, UserCodeError
from sigprop.inputs import builder_of, open_family, open_source, read_activation
from sigprop.inputs.batches import image_batch
from sigprop.measurement.guard import lendable_clone
from sigprop.plans.scaling.training import make_step

FILE = """
import torch
from torch import nn
from helper import WIDTH

class Model(nn.Module):
    def __init__(self, width=WIDTH, depth=1):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x

drawn = Model(4)

def batch(width=4):
    return torch.ones(3, width)

loader = torch.utils.data.DataLoader(torch.zeros(4, 4), batch_size=2)

def act(x):
    return torch.tanh(2 * x)
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "own.py").write_text(FILE)
    (tmp_path / "helper.py").write_text("WIDTH = 4\n")
    return tmp_path / "own.py"


def test_a_class_with_arguments_and_settings(file):
    source = open_source(f"{file}:Model(width=4)", {"depth": 3})
    assert len(source.build().blocks) == 3
    assert source.batch.shape == (3, 4)
    assert not source.fixed
    assert not torch.equal(source.build().blocks[0].weight, source.build().blocks[0].weight)


def test_a_module_of_a_file_keeps_its_weights(file):
    source = open_source(f"{file}:drawn")
    assert source.fixed
    assert torch.equal(source.build().blocks[0].weight, source.build().blocks[0].weight)
    with pytest.raises(InputError, match="fixed weights"):
        source.require_draws(2)


def test_data_by_name_and_families(file):
    assert torch.equal(open_source(f"{file}:Model", data=f"{file}:loader").batch, torch.zeros(2, 4))
    family = open_family(f"{file}:Model")
    assert len(family.build(4, 2).blocks) == 2


def test_every_kind_of_the_reference_transformer_is_a_family_that_trains():
    for kind in ("encoder", "decoder", "encoder_decoder"):
        family = open_family("transformer", {"kind": kind, "depth": 1}, batch=2, tokens=8)
        assert torch.isfinite(make_step(family.batch, family.loss)(family.build(32))[1])


def test_python_takes_what_the_command_line_takes(file):
    assert sigprop.predict(f"{file}:Model(depth=2)", torch.ones(3, 4), loss="noise")["blocks.1"].variance > 0
    assert isinstance(builder_of(nn.Identity)(), nn.Module)


def test_errors_of_the_file_name_its_line(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("from torch import nn\n\n\ndef net():\n    return nn.Linear(3)\n")
    with pytest.raises(UserCodeError, match=r"broken.py, line 5, in net: TypeError"):
        open_source(f"{path}:net").build()


def test_activations(file):
    assert read_activation("gelu") == "gelu"
    assert read_activation(f"{file}:act")(torch.tensor(0.0)) == 0


def test_first_batch_of_a_loader():
    data = TensorDataset(torch.arange(6.0).reshape(3, 2), torch.arange(3))
    inputs, labels = first_batch(DataLoader(data, batch_size=2))
    assert inputs.shape == (2, 2)
    assert labels.tolist() == [0, 1]
    with pytest.raises(InputError, match="empty"):
        first_batch(DataLoader(TensorDataset(torch.zeros(0, 2))))
    model = nn.Linear(2, 3)
    assert sigprop.predict(model, DataLoader(torch.ones(4, 2), batch_size=4), loss="noise").sites


def test_a_folder_of_images(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for index, size in enumerate([(8, 8), (8, 8), (6, 4)]):
        image.new("RGB", size, (40 * index, 10, 90)).save(tmp_path / f"{index}.png")
    assert image_batch(tmp_path, 2).shape == (2, 3, 8, 8)
    assert image_batch(tmp_path, 3, side=16).shape == (3, 3, 16, 16)
    assert image_batch(tmp_path, 1, channels=1).shape == (1, 1, 8, 8)
    assert image_batch(tmp_path, 2).mean().abs() < 1e-5
    assert open_source("vit", {"depth": 1}, data=str(tmp_path)).batch.shape == (3, 1, 28, 28)


@pytest.fixture
def checkpoint(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=300, n_positions=32)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path / "saved")
    return tmp_path / "saved", model


def test_a_checkpoint_folder_brings_its_weights(checkpoint):
    folder, model = checkpoint
    source = open_source(str(folder), tokens=12, batch=2)
    assert source.fixed
    assert source.batch["input_ids"].shape == source.batch["labels"].shape == (2, 12)
    assert torch.equal(source.build().transformer.wte.weight, model.transformer.wte.weight)
    bare = open_source(str(folder / "config.json"))
    assert not bare.fixed
    assert not torch.equal(bare.build().transformer.wte.weight, model.transformer.wte.weight)
    with pytest.raises(InputError, match=r"config\.json to change settings"):
        open_source(str(folder), {"n_layer": 3})


def test_pickles_and_foreign_code_are_never_run(checkpoint, tmp_path):
    folder, _ = checkpoint
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedError, match="pickles"):
        open_source(str(folder))
    ran = tmp_path / "ran"
    (folder / "modeling_own.py").write_text(f"open({str(ran)!r}, 'w')\n")
    settings = json.loads((folder / "config.json").read_text())
    settings |= {"model_type": "own", "auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}}
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UnknownNameError, match="code inside a model folder is never run"):
        open_source(str(folder))
    assert not ran.exists()


def test_text_through_the_tokenizer_of_the_folder(checkpoint, tmp_path):
    folder, _ = checkpoint
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: index for index, word in enumerate(["[UNK]", "to", "be", "or", "not"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (tmp_path / "words.txt").write_text("to be or not to be " * 10)
    source = open_source(str(folder), data=str(tmp_path / "words.txt"), tokens=6, batch=1)
    assert source.batch["input_ids"].tolist() == [[1, 2, 3, 4, 1, 2]]


def test_a_hub_id_that_is_not_cached_is_not_fetched(monkeypatch):
    pytest.importorskip("transformers")
    with pytest.raises(InputError, match="hf download no/such"):
        open_source("no/such")


def test_weights_of_a_folder_can_be_lent(checkpoint):
    """What is mapped from a file cannot: every pass would copy it."""
    model = open_source(str(checkpoint[0]), tokens=12).build()
    assert all(lendable_clone(parameter) is not None for parameter in model.parameters())


def test_a_sharded_folder_is_what_was_saved(checkpoint, tmp_path):
    _, model = checkpoint
    model.to(torch.bfloat16).save_pretrained(tmp_path / "sharded", max_shard_size="8KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    loaded = open_source(str(tmp_path / "sharded"), tokens=12).build()
    for name, parameter in loaded.named_parameters():
        assert parameter.dtype == torch.bfloat16
        assert torch.equal(parameter, model.get_parameter(name)), name


def test_a_config_with_an_infinite_setting_is_read(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.Mamba2Config(hidden_size=32, num_heads=4, head_dim=16, state_size=8, num_hidden_layers=1)
    config.save_pretrained(tmp_path)
    assert open_source(str(tmp_path / "config.json")).build().config.time_step_limit[1] == float("inf")
