"""Random models of a few thousand parameters, saved as a user's models are, with a tokenizer of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from harness.models.manifest import Manifest

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<unused>")
VOCABULARY = 256 + len(SPECIAL)
PADDED = 272  # rows of the embedding: 11 more than there are tokens


def tokenizer(adds_bos: bool = True) -> PreTrainedTokenizerFast:
    """One token per byte; BOS is added to plain text and written by the chat template as well."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(list(SPECIAL))  # ids 256 …
    if adds_bos:
        bos = core.token_to_id("<s>")
        core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>",
        eos_token="</s>",
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def model(kind: str = "qwen2", seed: int = 0, vocabulary: int = PADDED, tied: bool = True) -> Any:
    """A two-layer random model in float32."""
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "vocab_size": vocabulary, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "tie_word_embeddings": tied, "attn_implementation": "sdpa", "initializer_range": 0.2,
    }  # fmt: skip
    net = Qwen2ForCausalLM(Qwen2Config(**shape)) if kind == "qwen2" else LlamaForCausalLM(LlamaConfig(**shape))
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
    return net.eval()


def save(directory: Path, net: Any = None, manifest: Manifest | None = None, with_tokenizer: bool = True) -> Path:
    """Write a model directory, and a manifest beside the weights where one is given."""
    directory.mkdir(parents=True, exist_ok=True)
    (net or model()).save_pretrained(directory)
    if with_tokenizer:
        tokenizer().save_pretrained(directory)
    if manifest:
        manifest.write(directory)
    return directory


def logits(net: Any, ids: list[int]) -> torch.Tensor:
    """[length, vocabulary] of a plain causal forward."""
    with torch.no_grad():
        return net(input_ids=torch.tensor([ids])).logits[0]
