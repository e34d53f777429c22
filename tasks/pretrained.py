"""What to start from: weights, and the config, vocabulary and casing that belong to them, wherever they are told."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from data.tokenization import load_vocab
from data.vocabulary_checks import casing_of_name, casing_of_vocab, check_size
from modeling.checkpoint import Checkpoint, read_checkpoint
from modeling.config import BertConfig


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A model as it was found."""

    checkpoint: Checkpoint | None  # None: from random weights
    config: BertConfig
    vocab: Mapping[str, int]
    vocab_file: str
    do_lower_case: bool

    @classmethod
    def find(
        cls,
        path: str | Path | None,
        bert_config_file: str | None = None,
        vocab_file: str | None = None,
        do_lower_case: bool | None = None,
    ) -> "Pretrained":
        """Reads whatever a person has, as `read_checkpoint` does; what lies beside the weights need not be named.

        Args:
            path: of weights, or None to start from random ones; config and vocabulary then have to be named.
            bert_config_file, vocab_file, do_lower_case: what nothing beside the weights tells, or tells otherwise.
        """
        checkpoint = read_checkpoint(path) if path else None
        config = BertConfig.from_json_file(bert_config_file) if bert_config_file else checkpoint and checkpoint.config
        vocab_file = vocab_file or (checkpoint and checkpoint.vocab_file)
        if config is None or vocab_file is None:
            missing = "bert_config_file" if config is None else "vocab_file"
            where = f"Nothing beside {path} tells" if path else "There is no --init_checkpoint to tell"
            raise ValueError(f"{where} the {missing.split('_file')[0]}: name it by --{missing}.")
        vocab = load_vocab(vocab_file)
        check_size(vocab, vocab_file, config.vocab_size)
        told = (do_lower_case, checkpoint and checkpoint.do_lower_case, casing_of_name(str(path)))
        answers = (*told, casing_of_vocab(vocab), True)
        return cls(checkpoint, config, vocab, vocab_file, next(answer for answer in answers if answer is not None))
