"""Writes models without weights: a config, a tokenizer of our own, a chat template.

    python models.py FOLDER [NAME …]

Weights are random (`--load-format dummy`), so only shapes matter: they decide how long a step takes, and how many
bytes of KV cache a token needs. The tokenizer reads the three-letter words that `extproc bench` writes as one token
each: four characters with the space, which is what the router assumes before it has learnt better. All other numbers of
the vocabulary get words, too, so that whatever random weights say is text that can be streamed.
"""

import json
import sys
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel


class Shape(NamedTuple):
    """A Llama by its sizes."""

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int


SHAPES: Final = {
    "tiny": Shape(2, 128, 256, 4, 2, 32, 8_192),  # for a rehearsal on CPUs
    "3b": Shape(28, 3_072, 8_192, 24, 8, 128, 128_256),
    "8b": Shape(32, 4_096, 14_336, 32, 8, 128, 128_256),
}
_SPECIAL: Final = ("<|im_start|>", "<|im_end|>")
_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CONSONANTS, _VOWELS = "bcdfghjklmnprstvwxyz", "aeiou"
_LONGEST: Final = 131_072


def make_tokenizer(size: int) -> Tokenizer:
    """A byte-level BPE that has each word, with and without a space before it, as one token."""
    tokens = [*_SPECIAL, *sorted(ByteLevel.alphabet())]
    merges: list[tuple[str, str]] = []
    for left, right in _pairs():  # merges are tried in this order: parts before wholes
        merges.append((left, right))
        tokens.append(left + right)
    tokens += [
        f"\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}w{number}"
        for number in range(size - len(tokens))
    ]
    tokenizer = Tokenizer(BPE({token: number for number, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([*_SPECIAL])
    return tokenizer


def _pairs() -> list[tuple[str, str]]:
    heads = [*product(_CONSONANTS, _VOWELS)]
    words = [(left + right, end) for left, right in heads for end in _CONSONANTS]
    space = "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}"  # as a byte-level BPE writes it
    return [*heads, *words, *((space, head + end) for head, end in words)]


def write_model(folder: Path, name: str) -> None:
    shape = SHAPES[name]
    target = folder / name
    target.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float32" if name == "tiny" else "bfloat16",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head,
        "vocab_size": shape.vocabulary,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": _LONGEST,
        "tie_word_embeddings": name == "3b",
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _SPECIAL[0],
        "eos_token": _SPECIAL[1],
        "chat_template": _TEMPLATE,
        "model_max_length": _LONGEST,
    }
    (target / "config.json").write_text(json.dumps(config, indent=2))
    (target / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2))
    make_tokenizer(shape.vocabulary).save(str(target / "tokenizer.json"))


def main() -> None:
    for name in sys.argv[2:] or SHAPES:
        write_model(Path(sys.argv[1]), name)


if __name__ == "__main__":
    main()
