"""Writes a tiny model folder that vLLM serves with random weights; runs in vLLM's own environment.

The tokenizer is a byte-level BPE trained on the standard library's sources: text that every Python
has.
"""

import json
import shutil
import sysconfig
from pathlib import Path
from sys import argv

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

CONFIG = Path(__file__).with_name("config.json")
SIZE = json.loads(CONFIG.read_text())["vocab_size"]
SPECIAL = ["<|im_start|>", "<|im_end|>"]
# What `extproc/simulator/http/apis/fields.py` renders, so that both servers read the same tokens.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=SIZE,
        special_tokens=SPECIAL,
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-e]*.py"))
    tokenizer.train([str(source) for source in sources], trainer)
    return tokenizer


def main() -> None:
    directory = Path(argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(CONFIG, directory)
    train_tokenizer().save(str(directory / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": 8192,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2))


if __name__ == "__main__":
    main()
