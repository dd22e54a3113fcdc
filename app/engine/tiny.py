"""Builds the rehearsal model: a tiny random Gemma 3n with every part of the real one.

Language, vision and audio towers, tokenizer, processor and chat template, all made from
nothing: no download, no file read. The same source on the same package versions gives the
same bytes (another CPU instruction set moves last bits of bitsandbytes' nested_quant_map
and nothing else), so a folder can be named by its inputs (`app.rehearsal`).

It runs in a process of its own (`python -m app.engine.tiny DEST`): it pins torch's thread count
and does not restore it.
"""

import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    Gemma3nAudioConfig,
    Gemma3nAudioFeatureExtractor,
    Gemma3nConfig,
    Gemma3nForConditionalGeneration,
    Gemma3nProcessor,
    Gemma3nTextConfig,
    Gemma3nVisionConfig,
    GemmaTokenizer,
    PreTrainedModel,
    SiglipImageProcessor,
)

SEED = 3407
LAYERS = 4
# Three id ranges in the real order: text (the only one with per-layer embeddings), vision, audio.
TEXT_VOCAB, VISION_VOCAB, AUDIO_VOCAB = 512, 16, 16
# 64 px at the backbone's stride of 32 are 2 x 2 soft tokens (the real model: 768 px, 16 x 16).
IMAGE_SIZE, IMAGE_TOKENS = 64, 4
# As in the real processor: 30 s of audio, one soft token per 160 ms.
AUDIO_TOKENS = 188
# mobilenetv3_small_050 ends its feature stack in 288 channels.
VISION_BACKBONE, VISION_CHANNELS = "mobilenetv3_small_050", 288
AUDIO_HIDDEN = 64
MATRIX = 2  # dimensions of a matrix; a kernel has more, a norm or a bias has one

# What NF4 leaves alone. transformers 5.17 matches an entry at the start or at the end of a
# module's full path only, so a bare "audio_tower" skips nothing inside the tower: hence the paths
# below it. AltUp must stay unpacked, because training clamps its coefficients in place.
SKIP_MODULES: tuple[str, ...] = (
    *("vision_tower", "audio_tower", "embed_vision", "embed_audio", "lm_head"),
    *("prediction_coefs", "correction_coefs", "altup"),
    *(f"model.{part}" for part in ("vision_tower", "audio_tower", "embed_vision", "embed_audio")),
    *(f"model.language_model.layers.{index}.altup" for index in range(LAYERS)),
)

# Attribute of the tokenizer -> the token, with the ids where Gemma3nConfig says they are.
MODALITY_TOKENS: dict[str, tuple[str, int]] = {
    "boi_token": ("<start_of_image>", 7),
    "boa_token": ("<start_of_audio>", 8),
    "eoi_token": ("<end_of_image>", TEXT_VOCAB),
    "image_token": ("<image_soft_token>", TEXT_VOCAB + 1),
    "eoa_token": ("<end_of_audio>", TEXT_VOCAB + VISION_VOCAB),
    "audio_token": ("<audio_soft_token>", TEXT_VOCAB + VISION_VOCAB + 1),
}
TURN_TOKENS = {"sot_token": ("<start_of_turn>", 5), "eot_token": ("<end_of_turn>", 6)}

# Gemma's turn format: the roles are `user` and `model`, a system text opens the first user turn.
CHAT_TEMPLATE = """\
{{ bos_token }}
{%- set opening = namespace(text='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- set content = message.content -%}
{%- set opening.text = (content if content is string else content[0].text) + '\\n\\n' -%}
{%- else -%}
{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
{{- opening.text -}}
{%- set opening.text = '' -%}
{%- if message.content is string -%}
{{ message.content | trim }}
{%- else -%}
{%- set soft = {'image': '<image_soft_token>', 'audio': '<audio_soft_token>'} -%}
{%- for part in message.content -%}{{ soft.get(part.type) or part.text | trim }}{%- endfor -%}
{%- endif -%}
{{ '<end_of_turn>\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""


def vocabulary() -> dict[str, int]:
    """Every id below the vocabulary's size, once: specials, bytes, ASCII, fillers."""
    fixed = {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3, "<mask>": 4}
    fixed.update(dict((TURN_TOKENS | MODALITY_TOKENS).values()))
    plain = [f"<0x{byte:02X}>" for byte in range(256)]
    plain += ["\n", "▁", *(chr(code) for code in range(0x21, 0x7F))]
    free = [index for index in range(TEXT_VOCAB) if index not in set(fixed.values())]
    vocab = fixed | dict(zip(plain, free, strict=False))
    rest = set(range(TEXT_VOCAB + VISION_VOCAB + AUDIO_VOCAB)) - set(vocab.values())
    return vocab | {f"<unused{index}>": index for index in sorted(rest)}


def processor() -> Gemma3nProcessor:
    """Tokenizer (one token per ASCII character, bytes beyond it), image and audio processors."""
    special = TURN_TOKENS | MODALITY_TOKENS
    tokenizer = GemmaTokenizer(
        vocab=vocabulary(),
        merges=[],
        extra_special_tokens={name: token for name, (token, _) in special.items()},
        model_max_length=32_768,
        chat_template=CHAT_TEMPLATE,
    )
    # Pixels in 0..1, not normalised, like the real one's.
    size = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    return Gemma3nProcessor(
        feature_extractor=Gemma3nAudioFeatureExtractor(),
        image_processor=SiglipImageProcessor(size=size, do_normalize=False),
        tokenizer=tokenizer,
        chat_template=CHAT_TEMPLATE,
        audio_seq_length=AUDIO_TOKENS,
        image_seq_length=IMAGE_TOKENS,
    )


def text_config() -> Gemma3nTextConfig:
    """Four layers, the last two without k/v projections of their own (KV sharing).

    Every width is a multiple of 64, the NF4 block. One layer has the sparse activation.
    """
    return Gemma3nTextConfig(
        vocab_size=TEXT_VOCAB + VISION_VOCAB + AUDIO_VOCAB,
        vocab_size_per_layer_input=TEXT_VOCAB,
        hidden_size=128,
        hidden_size_per_layer_input=64,
        intermediate_size=256,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        laurel_rank=64,
        layer_types=["sliding_attention", "full_attention"] * (LAYERS // 2),
        num_kv_shared_layers=2,
        activation_sparsity_pattern=[0.95] + [0.0] * (LAYERS - 1),
    )


def config() -> Gemma3nConfig:
    """The whole model's configuration, special ids taken from the tokenizer's own table."""
    vision = Gemma3nVisionConfig(
        architecture=VISION_BACKBONE,
        hidden_size=VISION_CHANNELS,
        vocab_size=VISION_VOCAB,
        vocab_offset=TEXT_VOCAB,
    )
    audio = Gemma3nAudioConfig(
        vocab_size=AUDIO_VOCAB,
        vocab_offset=TEXT_VOCAB + VISION_VOCAB,
        hidden_size=AUDIO_HIDDEN,
        conf_num_attention_heads=4,
        conf_num_hidden_layers=2,
        sscp_conv_channel_size=(16, 8),
    )
    return Gemma3nConfig(
        text_config=text_config(),
        vision_config=vision,
        audio_config=audio,
        vision_soft_tokens_per_image=IMAGE_TOKENS,
        audio_soft_tokens_per_image=AUDIO_TOKENS,
        **{f"{name}_id": index for name, (_, index) in MODALITY_TOKENS.items()},
    )


def redraw(model: PreTrainedModel) -> None:
    """Redraws every matrix and convolution kernel; vectors keep their ones and zeros.

    torch's normal distribution gives other last bits with AVX2 than without; random integers
    times one factor do not. Standard deviation: He's for kernels, the family's 0.02 for matrices.
    """
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for _, weight in sorted(model.named_parameters()):
            if weight.dim() < MATRIX:
                continue
            deviation = math.sqrt(2 / weight[0].numel()) if weight.dim() > MATRIX else 0.02
            steps = torch.randint(-128, 129, weight.shape, generator=generator)
            # sqrt(3): a uniform number in [-1, 1] has a deviation of sqrt(1/3).
            weight.copy_(steps.float() * (deviation * math.sqrt(3) / 128))


def plain_model() -> Gemma3nForConditionalGeneration:
    """Random bfloat16 weights from one seed."""
    model = Gemma3nForConditionalGeneration(config())
    redraw(model)
    with torch.no_grad():
        for layer in model.model.language_model.layers:
            # Zero by default, which would cut the per-layer embeddings off the loss.
            layer.altup.correct_output_scale.fill_(1.0)
    return model.to(torch.bfloat16).eval()


def quantise(plain: Path, destination: Path, skip: Sequence[str]) -> PreTrainedModel:
    """Writes the NF4 form (nested absmax) of the bfloat16 checkpoint in `plain`; returns it."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        plain,
        dtype=torch.bfloat16,
        device_map="cpu",
        quantization_config=BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
            llm_int8_skip_modules=list(skip),
        ),
    )
    model.save_pretrained(destination)
    return model


def build(destination: Path) -> None:
    """Writes the checkpoint and its processor into `destination`, which must not exist yet."""
    # One thread: no sum's order, hence no byte, depends on the number of cores.
    torch.set_num_threads(1)
    destination.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as staging:
        plain_model().save_pretrained(staging)
        quantise(Path(staging), destination, SKIP_MODULES)
    processor().save_pretrained(destination)
    for file in destination.iterdir():
        # safetensors writes 0600; another uid that shares the cache must be able to read it.
        file.chmod(0o644)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
