"""Pre-trains BERT: TFRecords of create_pretraining_data.py in, a checkpoint out. Example:

    python run_pretraining.py \\
      --input_file='records/*.tfrecord' --bert_config_file=bert_config.json --output_dir=out \\
      --do_train --train_batch_size=256 --num_train_steps=100000 --num_warmup_steps=1000 --learning_rate=1e-4 \\
      --do_eval --eval_file=heldout.tfrecord

The same command continues a run that was stopped or killed; exit code 75 says that it has to be run again.
"""

import dataclasses
import functools
import logging
from pathlib import Path

from absl import flags

import command_line
import training_flags
from data.metadata import check_vocab, check_vocab_size
from data.text_files import find_files
from data.tokenization import load_vocab
from data.vocabulary_checks import check_size
from flag_help import heading

command_line.offer_dry_run()

heading("Required")
_BERT_CONFIG_FILE = flags.DEFINE_string("bert_config_file", None, "This JSON file tells the shape of the network.")
_INPUT_FILE = flags.DEFINE_string(
    "input_file", None, "Train on these records: a comma-separated list of TFRecord files or globs."
)
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "The run keeps its checkpoints and figures here.")

heading("Model")
_INIT_CHECKPOINT = flags.DEFINE_string(
    "init_checkpoint",
    None,
    "Start from these weights: a checkpoint of Google's, a directory of Hugging Face's, or an output directory of "
    "ours. They are random if it is not set.",
)
_ATTENTION = flags.DEFINE_enum(
    "attention",
    None,
    ["bidirectional", "causal"],
    "With causal, each piece sees only those to its left, and every position is trained to tell the next one, as in "
    "the ablation of the paper. The config decides if this is not set.",
)

heading("Data")
_EVAL_FILE = flags.DEFINE_string(
    "eval_file", None, "Evaluate on these records; on --input_file if not set, as the original does."
)
_VOCAB_FILE = flags.DEFINE_string(
    "vocab_file",
    None,
    "The records have this vocabulary: it is checked, and copied to --output_dir. Dynamic masking needs it.",
)
_MAX_SEQ_LENGTH = flags.DEFINE_integer(
    "max_seq_length", 128, "The records were made with this --max_seq_length.", lower_bound=1
)
_MAX_PREDICTIONS_PER_SEQ = flags.DEFINE_integer(
    "max_predictions_per_seq", 20, "The records were made with this --max_predictions_per_seq.", lower_bound=1
)
_MASKING = flags.DEFINE_enum(
    "masking",
    "auto",
    ["auto", "static", "dynamic"],
    "Whether records hold masks (static) or are masked anew whenever they are read (dynamic); auto sees which it is.",
)
_SKIP_CORRUPT_RECORDS = flags.DEFINE_bool(
    "skip_corrupt_records", False, "Whether to count records that cannot be read and go on, instead of stopping."
)

heading("Training")
_DO_TRAIN = flags.DEFINE_bool("do_train", False, "Whether to train.")
_DO_EVAL = flags.DEFINE_bool("do_eval", False, "Whether to evaluate, after training if both.")
_TRAIN_BATCH_SIZE = flags.DEFINE_integer(
    "train_batch_size", 32, "A step of training has this many sequences, of all devices together.", lower_bound=1
)
_EVAL_BATCH_SIZE = flags.DEFINE_integer(
    "eval_batch_size", 8, "A batch of the evaluation has this many sequences.", lower_bound=1
)
_NUM_TRAIN_STEPS = flags.DEFINE_integer("num_train_steps", 100000, "The whole run has this many steps.", lower_bound=1)
_NUM_WARMUP_STEPS = flags.DEFINE_integer(
    "num_warmup_steps", 10000, "The learning rate rises for this many steps.", lower_bound=0
)
_MAX_EVAL_STEPS = flags.DEFINE_integer("max_eval_steps", 100, "Evaluate on this many batches at most.", lower_bound=1)
_USE_NEXT_SENTENCE = flags.DEFINE_bool(
    "use_next_sentence", True, "Whether next sentence prediction is part of the loss; without it, masked words are all."
)

if __name__ == "__main__":
    command_line.parse_flags(__doc__)  # --help and a wrong flag do not wait for TensorFlow
    command_line.load_tensorflow()

from data.masking import left_to_right
from data.pretraining_input import PretrainingInput
from modeling.checkpoint import load_checkpoint
from modeling.config import BertConfig
from modeling.models import PretrainingModel
from tasks.pretraining import PretrainingTask
from training.evaluation import Evaluator, load_latest, write_results
from training.loop import check_batch_size, train
from training.state import RunRecord, check_free
from training.strategy import is_chief


def validate_flags() -> BertConfig:
    """Refuses what cannot work, before any of it is done."""
    for flag in (_BERT_CONFIG_FILE, _INPUT_FILE, _OUTPUT_DIR):
        if not flag.value:
            raise ValueError(f"--{flag.name} is missing.")
    if not _DO_TRAIN.value and not _DO_EVAL.value:
        raise ValueError("At least one of --do_train and --do_eval must be set.")
    config = BertConfig.from_json_file(_BERT_CONFIG_FILE.value)
    if _MAX_SEQ_LENGTH.value > config.max_position_embeddings:
        raise ValueError(
            f"--max_seq_length={_MAX_SEQ_LENGTH.value} is longer than what the model can learn: "
            f"max_position_embeddings in {_BERT_CONFIG_FILE.value} is {config.max_position_embeddings}."
        )
    config = dataclasses.replace(config, attention=_ATTENTION.value) if _ATTENTION.value else config
    if config.attention == "causal" and _USE_NEXT_SENTENCE.value:
        raise ValueError("With --attention=causal, [CLS] sees nothing but itself: add --use_next_sentence=false.")
    return config


def open_input(pattern: str, flag: str, config: BertConfig) -> PretrainingInput:
    """Finds records and sees that they fit the model and the flags."""
    files = find_files(pattern, flag=flag)
    check_vocab_size(files, config.vocab_size)
    vocab = None
    if _VOCAB_FILE.value:
        vocab = load_vocab(_VOCAB_FILE.value)
        check_size(vocab, _VOCAB_FILE.value, config.vocab_size)
        for file in files:
            check_vocab(file, vocab, _VOCAB_FILE.value)
    return PretrainingInput.open(
        files,
        _MAX_SEQ_LENGTH.value,
        _MAX_PREDICTIONS_PER_SEQ.value,
        masking=_MASKING.value,
        vocab=vocab,
        skip_corrupt=_SKIP_CORRUPT_RECORDS.value,
        vocab_size=config.vocab_size,
        type_vocab_size=config.type_vocab_size,
        change=left_to_right if config.attention == "causal" else None,
    )


def main() -> None:
    config = validate_flags()
    train_input = open_input(_INPUT_FILE.value, "input_file", config)
    eval_input = open_input(_EVAL_FILE.value, "eval_file", config) if _EVAL_FILE.value else train_input
    strategy = training_flags.start()
    seed = training_flags.seed(_OUTPUT_DIR.value, strategy)
    if is_chief(strategy):
        command_line.check_output_dir(_OUTPUT_DIR.name, _OUTPUT_DIR.value)
    task = PretrainingTask(_USE_NEXT_SENTENCE.value)
    with strategy.scope():
        model = PretrainingModel(config, **training_flags.model_options(seed))
    if command_line.is_dry_run():
        end_dry_run(strategy, model, config, train_input)
    evaluator = None
    if _DO_EVAL.value or training_flags.evaluates_while_training():
        evaluator = make_evaluator(strategy, model, task, eval_input)
    results = None
    if _DO_TRAIN.value:
        step, results = run_training(strategy, model, task, train_input, seed, config, evaluator)
    else:
        step = load_weights(model, config)
    if _DO_EVAL.value:
        results = results or evaluator()
        if is_chief(strategy):
            write_results(_OUTPUT_DIR.value, step, results)


def end_dry_run(strategy, model: PretrainingModel, config: BertConfig, train_input: PretrainingInput) -> None:
    facts = training_flags.facts(strategy, model, _INIT_CHECKPOINT.value) | {"records": train_input.describe()}
    if _DO_TRAIN.value:
        check_batch_size(strategy, _TRAIN_BATCH_SIZE.value, training_flags.parts(), flag="train_batch_size")
        check_free(_OUTPUT_DIR.value)
        initialize(model)
        sizes = (_TRAIN_BATCH_SIZE.value, _MAX_SEQ_LENGTH.value, _MAX_PREDICTIONS_PER_SEQ.value)
        facts |= training_flags.memory(strategy, config, *sizes)
    else:
        load_weights(model, config)
        facts |= command_line.weights_memory(4 * model.count_params())
    if _DO_EVAL.value:
        check_batch_size(strategy, _EVAL_BATCH_SIZE.value, parts=1, flag="eval_batch_size")
    command_line.end_dry_run(facts)


def make_evaluator(strategy, model, task, eval_input: PretrainingInput) -> Evaluator:
    check_batch_size(strategy, _EVAL_BATCH_SIZE.value, parts=1, flag="eval_batch_size")
    return Evaluator(
        strategy,
        model,
        task,
        functools.partial(eval_input.evaluation_batches, _EVAL_BATCH_SIZE.value),
        min(_MAX_EVAL_STEPS.value, eval_input.num_evaluation_batches(_EVAL_BATCH_SIZE.value)),
        training_flags.jit_compile(strategy),
    )


def run_training(strategy, model, task, train_input: PretrainingInput, seed: int, config: BertConfig, evaluator):
    check_batch_size(strategy, _TRAIN_BATCH_SIZE.value, training_flags.parts(), flag="train_batch_size")
    with strategy.scope():
        optimizer, loss_scale = training_flags.optimizer_for(model, _NUM_TRAIN_STEPS.value, _NUM_WARMUP_STEPS.value)
    settings = {"bert_config.json": config.to_json_string()}
    if _VOCAB_FILE.value:
        settings["vocab.txt"] = Path(_VOCAB_FILE.value).read_text(encoding="utf-8")
    return train(
        strategy,
        model,
        task,
        optimizer,
        functools.partial(train_input.training_batches, _TRAIN_BATCH_SIZE.value, seed),
        training_flags.loop_options(
            strategy, _OUTPUT_DIR.value, _NUM_TRAIN_STEPS.value, _TRAIN_BATCH_SIZE.value, _MAX_SEQ_LENGTH.value, seed
        ),
        deciding_flags(train_input, seed, config),
        settings,
        functools.partial(initialize, model),
        loss_scale,
        evaluator if training_flags.evaluates_while_training() else None,
    )


def deciding_flags(train_input: PretrainingInput, seed: int, config: BertConfig) -> dict:
    """All that a run cannot change when it is continued, by the flag that says it."""
    named = (
        _INIT_CHECKPOINT,
        _MAX_SEQ_LENGTH,
        _MAX_PREDICTIONS_PER_SEQ,
        _TRAIN_BATCH_SIZE,
        _NUM_TRAIN_STEPS,
        _NUM_WARMUP_STEPS,
        _USE_NEXT_SENTENCE,
        _SKIP_CORRUPT_RECORDS,
    )
    of_data = {
        "bert_config_file": config.to_dict(),
        "attention": config.attention,
        "input_file": train_input.describe(),
    }
    return training_flags.deciding(seed) | {flag.name: flag.value for flag in named} | of_data


def initialize(model: PretrainingModel) -> None:
    if _INIT_CHECKPOINT.value:
        logging.info("%s", load_checkpoint(model, _INIT_CHECKPOINT.value))


def load_weights(model: PretrainingModel, config: BertConfig) -> int:
    """For an evaluation alone: the weights of the run in --output_dir if there is one, else of --init_checkpoint."""
    RunRecord(_OUTPUT_DIR.value).check_only("bert_config_file", config.to_dict())
    step = load_latest(model, _OUTPUT_DIR.value)
    if step is not None:
        return step
    if not _INIT_CHECKPOINT.value:
        raise ValueError(f"There is nothing to evaluate: no run in {_OUTPUT_DIR.value}, and no --init_checkpoint.")
    initialize(model)
    return 0


if __name__ == "__main__":
    command_line.run(main)
