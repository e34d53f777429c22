"""The library in fifty lines: records in, a checkpoint that any BERT tool reads out.

python -m examples.first_steps --input_file='quickstart/records/*.tfrecord' --vocab_file=quickstart/vocab.txt
"""

from pathlib import Path

import tensorflow as tf
from absl import flags
from tqdm import tqdm

import command_line
from data.metadata import check_vocab
from data.records import CorruptRecords, RecordFiles, training_batches
from data.text_files import find_files
from data.tokenization import load_vocab, vocab_size
from modeling.checkpoint import load_checkpoint, save_checkpoint
from modeling.config import BertConfig
from modeling.losses import masked_lm_loss, next_sentence_loss
from modeling.models import PretrainingModel
from training.optimizer import AdamWeightDecay, WarmupLinearDecay

_INPUT_FILE = flags.DEFINE_string("input_file", "quickstart/records/*.tfrecord", "Records to learn from, as globs.")
_VOCAB_FILE = flags.DEFINE_string("vocab_file", "quickstart/vocab.txt", "The vocabulary they were made with.")
_OUTPUT_DIR = flags.DEFINE_string("output_dir", "quickstart/model", "Where to write the model.")
_NUM_TRAIN_STEPS = flags.DEFINE_integer("num_train_steps", 300, "Training steps.", lower_bound=1)
_SKIP_CORRUPT_RECORDS = flags.DEFINE_bool(
    "skip_corrupt_records", False, "Whether to count records that cannot be read and go on, instead of stopping."
)
_BATCH_SIZE = flags.DEFINE_integer("train_batch_size", 32, "Sequences in a batch.", lower_bound=1)


def main() -> None:
    vocab = load_vocab(_VOCAB_FILE.value)
    config = BertConfig.preset("tiny", vocab_size=vocab_size(vocab))
    files = find_files(_INPUT_FILE.value, flag="input_file")
    for file in files:
        check_vocab(file, vocab, _VOCAB_FILE.value)
    corrupt = CorruptRecords(_SKIP_CORRUPT_RECORDS.value)
    batches = training_batches(RecordFiles.open(files, corrupt), _BATCH_SIZE.value, seed=1, corrupt=corrupt)
    model = PretrainingModel(config, seed=1)
    steps = _NUM_TRAIN_STEPS.value
    optimizer = AdamWeightDecay(WarmupLinearDecay(1e-3, steps, num_warmup_steps=steps // 10))
    optimizer.build(model.trainable_variables)

    @tf.function(jit_compile=True)
    def train_step(batch):
        with tf.GradientTape() as tape:
            logits = model(batch, training=True)
            masked_lm = masked_lm_loss(logits["masked_lm_logits"], batch["masked_lm_ids"], batch["masked_lm_weights"])
            next_sentence = next_sentence_loss(logits["next_sentence_logits"], batch["next_sentence_labels"])
            loss = masked_lm + next_sentence
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return masked_lm, next_sentence

    with tqdm(total=steps, desc="Pre-training", unit=" steps") as bar:
        for batch in batches.take(steps):
            masked_lm, next_sentence = train_step(batch)
            bar.set_postfix(masked_lm_loss=f"{masked_lm:.3f}", next_sentence_loss=f"{next_sentence:.3f}", refresh=False)
            bar.update()

    output = Path(_OUTPUT_DIR.value)
    save_checkpoint(model, output / "bert_model.ckpt")
    (output / "bert_config.json").write_text(config.to_json_string(), encoding="utf-8")
    print(load_checkpoint(PretrainingModel(config), output))


if __name__ == "__main__":
    command_line.run(main)
