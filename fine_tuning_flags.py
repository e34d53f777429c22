"""The flags that all scripts of fine-tuning share. Nothing here loads TensorFlow, so that --help is quick."""

from pathlib import Path

from absl import flags

from flag_help import heading
from tasks.settings import SETTINGS_FILE

heading("Required")
OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "The run keeps its checkpoints, figures and answers here.")

heading("Model")
INIT_CHECKPOINT = flags.DEFINE_string(
    "init_checkpoint",
    None,
    "Start from these weights: a checkpoint of Google's, a directory of Hugging Face's, or an output directory of "
    "ours. Without it, training starts from random weights; evaluation and prediction take the model in --output_dir.",
)
BERT_CONFIG_FILE = flags.DEFINE_string(
    "bert_config_file", None, "Read the config here, if it does not lie beside the weights."
)
VOCAB_FILE = flags.DEFINE_string("vocab_file", None, "Read the vocabulary here, if it does not lie beside the weights.")
DO_LOWER_CASE = flags.DEFINE_bool(
    "do_lower_case", None, "Whether to lower-case the text. By default the model tells, and it is True if it does not."
)
FREEZE_LAYERS = flags.DEFINE_integer(
    "freeze_layers",
    0,
    "Keep the embeddings and this many of the lowest layers as they are, at most all of them; 0 trains everything.",
    lower_bound=0,
)

heading("Training")
DO_TRAIN = flags.DEFINE_bool("do_train", False, "Whether to train.")
DO_PREDICT = flags.DEFINE_bool("do_predict", False, "Whether to answer for data without answers.")
TRAIN_BATCH_SIZE = flags.DEFINE_integer(
    "train_batch_size",
    32,
    "A step of training has this many sequences, of all devices together; in multiple choice, this many examples.",
    lower_bound=1,
)
PREDICT_BATCH_SIZE = flags.DEFINE_integer(
    "predict_batch_size", 8, "Answer this many sequences together.", lower_bound=1
)
NUM_TRAIN_EPOCHS = flags.DEFINE_float(
    "num_train_epochs", 3.0, "Go through the training data this many times.", lower_bound=0.0
)
WARMUP_PROPORTION = flags.DEFINE_float(
    "warmup_proportion",
    0.1,
    "The learning rate rises over this share of the steps, from the first one on.",
    lower_bound=0.0,
    upper_bound=1.0,
)
BATCHING = flags.DEFINE_enum(
    "batching",
    "auto",
    ["auto", "padded", "trimmed", "bucketed"],
    "With padded, every sequence gets the full length, as in the original. With trimmed, the same batches go without "
    "columns of padding, which is sooner done; with bucketed, a batch has sequences of about the same length, which is "
    "sooner still. With auto they are trimmed, but padded where shapes have to be fixed (TPU, --jit_compile).",
)
TRAIN_BATCH_TOKENS = flags.DEFINE_integer(
    "train_batch_tokens",
    None,
    "With --batching=bucketed, a step has as many sequences as have this many pieces together, padding included, "
    "instead of --train_batch_size, which decides by default.",
    lower_bound=1,
)

# Flags above whose value decides what is learned; data and model are described by those who know them.
DECIDING = (
    INIT_CHECKPOINT,
    FREEZE_LAYERS,
    TRAIN_BATCH_SIZE,
    TRAIN_BATCH_TOKENS,
    NUM_TRAIN_EPOCHS,
    WARMUP_PROPORTION,
    BATCHING,
)


def validate() -> None:
    """Refuses flags that contradict each other."""
    if not OUTPUT_DIR.value:
        raise ValueError("--output_dir is missing.")
    if TRAIN_BATCH_TOKENS.value and BATCHING.value != "bucketed":
        raise ValueError("--train_batch_tokens needs --batching=bucketed.")


def trained_dir() -> str | None:
    """Where there is a model that was trained for a task: --output_dir, or --init_checkpoint; None if neither."""
    for directory in (OUTPUT_DIR.value, INIT_CHECKPOINT.value):
        if directory and has_settings(directory):
            return directory
    return None


def has_settings(directory: str) -> bool:
    return (Path(directory) / SETTINGS_FILE).is_file()
