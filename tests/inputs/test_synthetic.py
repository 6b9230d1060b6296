"""A batch is made for whatever a model of transformers reads: text, images, sounds, and two of them."""

import pytest
import torch

from sigprop.inputs import made_up_batch, open_source

SMALL = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
TEXT, IMAGE = SMALL | {"vocab_size": 60, "eos_token_id": 59}, SMALL | {"image_size": 32, "patch_size": 16}
SPEECH = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "vocab_size": 60, "pad_token_id": 1, "bos_token_id": 0,
    "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
TOKENS = 16
BOTH = {"text_config": TEXT, "vision_config": IMAGE}
READ = {
    "CLIPModel": (BOTH, {"input_ids": (4, 16), "pixel_values": (4, 3, 32, 32)}),
    "SiglipModel": (BOTH, {"input_ids": (4, 16), "pixel_values": (4, 3, 32, 32)}),
    "WhisperForConditionalGeneration": (
        SPEECH | {"max_source_positions": 20}, {"input_features": (1, 80, 40), "decoder_input_ids": (1, 16)}
    ),
    "Speech2TextForConditionalGeneration": (
        SPEECH | {"conv_channels": 32}, {"input_features": (1, 128, 80), "decoder_input_ids": (1, 16)}
    ),
    "Wav2Vec2ForSequenceClassification": (
        SMALL | {"conv_dim": [8] * 7, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2},
        {"input_values": (1, 320 * 17)},
    ),
    "ASTForAudioClassification": (SMALL | {"max_length": 100, "num_mel_bins": 32}, {"input_values": (1, 100, 32)}),
    "VisionEncoderDecoderModel": (None, {"pixel_values": (1, 3, 32, 32), "decoder_input_ids": (1, 16)}),
    "Gemma3ForConditionalGeneration": (
        {**BOTH, "text_config": TEXT | {"head_dim": 16, "num_key_value_heads": 1}}, {"input_ids": (1, 16)}
    ),
}  # fmt: skip


def made(name):
    transformers = pytest.importorskip("transformers")
    settings = READ[name][0]
    if settings is None:
        vision, text = transformers.ViTConfig(**IMAGE), transformers.BertConfig(**TEXT)
        config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, text)
        config.decoder_start_token_id, config.pad_token_id = 0, 0
    else:
        config = getattr(transformers, name).config_class(**settings)
    torch.manual_seed(0)
    return getattr(transformers, name)(config).eval()


@pytest.mark.parametrize("name", READ)
def test_all_inputs_are_made_that_the_forward_reads(name):
    model = made(name)
    batch = made_up_batch(model, TOKENS)
    inputs = {key: tuple(value.shape) for key, value in batch.items() if isinstance(value, torch.Tensor)}
    assert {key: shape for key, shape in inputs.items() if key != "labels"} == READ[name][1]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with torch.no_grad():
        found = model(**batch)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    if {"labels", "return_loss"} & set(batch):
        assert 0 < float(found.loss) < 20


def test_a_text_beside_an_image_ends_where_its_summary_is_read():
    """CLIP reads the summary at the end token; without one it would be that of the first token alone."""
    batch = made_up_batch(made("CLIPModel"), TOKENS)
    assert (batch["input_ids"][:, -1] == 59).all()
    assert batch["return_loss"] is True


def test_the_same_shapes_without_weights():
    transformers = pytest.importorskip("transformers")
    name = "WhisperForConditionalGeneration"
    with torch.device("meta"):
        model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**READ[name][0]))
    assert tuple(made_up_batch(model, TOKENS)["input_features"].shape) == (1, 80, 40)


def test_batch_norms_of_a_new_model_normalize_over_several_images(tmp_path):
    """In evaluation mode they have no statistics, which was an alarm about what we had done ourselves."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    config.architectures = ["ResNetForImageClassification"]
    config.save_pretrained(tmp_path)
    source = open_source(str(tmp_path / "config.json"))
    assert source.batch["pixel_values"].shape[0] == source.batch["labels"].shape[0] == 4
    model = source.build()
    modes = {type(item).__name__: item.training for item in model.modules() if not list(item.children())}
    assert modes["BatchNorm2d"]
    assert not modes["Conv2d"]
