"""Vectors of tokens and of texts from a pre-trained model, and what is asked of them. Examples:

    python extract_features.py --input_file=input.txt --output_file=output.jsonl --layers=-1,-2,-3,-4 \\
      --init_checkpoint=uncased_L-12_H-768_A-12

    python extract_features.py --input_file=input.txt --output_file=vectors.npz --format=npz --pooling=mean \\
      --normalize --init_checkpoint=all-MiniLM-L6-v2

    python extract_features.py --input_file=input.txt --query='a storm at sea' --init_checkpoint=all-MiniLM-L6-v2

    python extract_features.py --sts_file=glue/STS-B/dev.tsv --init_checkpoint=all-MiniLM-L6-v2

    python extract_features.py --text='The door was shut.' --attention_plot=pictures --init_checkpoint=all-MiniLM-L6-v2

The input has a text a line; `A ||| B` is a pair of sentences. docs/features.md tells what the files hold.
"""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from absl import flags

import command_line
from data.glue import GLUE_TASKS, read_split
from data.text_files import read_lines
from data.tokenization import to_unicode
from flag_help import heading

command_line.offer_dry_run()

heading("Required")
_INIT_CHECKPOINT = flags.DEFINE_string(
    "init_checkpoint",
    None,
    "Take vectors of this pre-trained or fine-tuned model, in any format that run_pretraining.py takes.",
)
_INPUT_FILE = flags.DEFINE_string(
    "input_file",
    None,
    "Read texts from this file, one a line, plain or gzip (.gz). With --text or --sts_file it is left out.",
)
_OUTPUT_FILE = flags.DEFINE_string(
    "output_file",
    None,
    "Write the vectors to this file, which appears when all are there. With --query, --sts_file or --attention_plot it "
    "is left out.",
)

heading("Model")
_BERT_CONFIG_FILE = flags.DEFINE_string(
    "bert_config_file", None, "Read the config here, if it does not lie beside the weights."
)
_VOCAB_FILE = flags.DEFINE_string(
    "vocab_file", None, "Read the vocabulary here, if it does not lie beside the weights."
)
_DO_LOWER_CASE = flags.DEFINE_bool(
    "do_lower_case", None, "Whether to lower-case the text. By default the model tells, and it is True if it does not."
)
_MAX_SEQ_LENGTH = flags.DEFINE_integer(
    "max_seq_length",
    128,
    "A text has at most this many pieces, [CLS] and [SEP] among them; longer ones are cut.",
    lower_bound=3,
)
_BATCH_SIZE = flags.DEFINE_integer(
    "batch_size", 32, "Run this many texts together, those of about the same length.", lower_bound=1
)

heading("Data")
_TEXT = flags.DEFINE_multi_string(
    "text", [], "Take this text instead of those of --input_file. It may be given several times."
)

heading("Output")
_QUERY = flags.DEFINE_multi_string(
    "query",
    [],
    "Instead of writing vectors, print the lines of --input_file that are nearest to this text by the cosine of their "
    "vectors. It may be given several times.",
)
_TOP_K = flags.DEFINE_integer("top_k", 5, "Print this many lines for each --query.", lower_bound=1)
_STS_FILE = flags.DEFINE_string(
    "sts_file",
    None,
    "Instead of writing vectors, compare the cosines of pairs with what people said of them. The file is a table with "
    "the columns sentence1, sentence2 and score, as dev.tsv of STS-B.",
)
_ATTENTION_PLOT = flags.DEFINE_string(
    "attention_plot",
    None,
    "Instead of writing vectors, draw into this directory which piece of a text attends to which: layer-00.png and so "
    "on, with a panel for each head. Pictures of several texts go into line-01 and so on in it. All layers are drawn, "
    "unless --layers is set.",
)
_LAYERS = flags.DEFINE_string(
    "layers",
    "-1,-2,-3,-4",
    "Take these layers, by number: 0 is the first, -1 the last. With --pooling it is the last one unless this is set; "
    "the vectors of several are joined.",
)
_POOLING = flags.DEFINE_enum(
    "pooling",
    None,
    ["none", "cls", "mean", "max", "second_to_last", "concat_last_4"],
    "With none, each token has a vector. The others give one for each text: cls, that of [CLS] (of little use without "
    "fine-tuning); mean or max, over all tokens but padding; second_to_last, the mean in the last layer but one; "
    "concat_last_4, the mean of the last four layers joined. By default it is none with --output_file, as in the "
    "original, else mean.",
)
_NORMALIZE = flags.DEFINE_bool(
    "normalize", False, "Whether vectors of texts get the length 1, so that the product of two is their cosine."
)
_FORMAT = flags.DEFINE_enum(
    "format",
    "jsonl",
    ["jsonl", "npz", "tfrecord"],
    "Write --output_file in this format. The original's is jsonl, some 32 kB a token for four layers of 768 numbers; "
    "npz and tfrecord take 12 kB, are sooner written and read, and are the ones for vectors of texts.",
)

heading("Devices")
# Of the original; vectors are the same whatever they say.
_USE_TPU = flags.DEFINE_bool(
    "use_tpu", False, "This is accepted, but vectors are computed on the devices of this machine."
)
flags.DEFINE_string("master", None, "This is accepted, and not used: see --use_tpu.")
flags.DEFINE_integer("num_tpu_cores", 8, "This is accepted, and not used: see --use_tpu.", lower_bound=1)
flags.DEFINE_bool(
    "use_one_hot_embeddings", False, "This is accepted, and not used: another way to the same vectors, meant for TPUs."
)

# Each has a picture for every layer: nobody would look at those of a thousand.
_MOST_TEXTS_IN_PICTURES = 16


def validate_flags() -> None:
    """Refuses what cannot work, before TensorFlow is loaded."""
    if sum(map(bool, (_OUTPUT_FILE.value, _QUERY.value, _STS_FILE.value, _ATTENTION_PLOT.value))) != 1:
        raise ValueError("Say what to do by one of --output_file, --query, --sts_file and --attention_plot.")
    if not _INIT_CHECKPOINT.value:
        raise ValueError("--init_checkpoint is missing: the model that makes the vectors.")
    if _INPUT_FILE.value and _TEXT.value:
        raise ValueError("Give texts by --text or by --input_file, not by both.")
    if _STS_FILE.value and (_INPUT_FILE.value or _TEXT.value):
        raise ValueError("--sts_file has texts of its own: leave out --input_file and --text.")
    if not (_STS_FILE.value or _INPUT_FILE.value or _TEXT.value):
        raise ValueError("--input_file is missing: texts, one a line. Or give them by --text.")
    if _OUTPUT_FILE.value:
        command_line.check_output_file(_OUTPUT_FILE.name, _OUTPUT_FILE.value)
    if not all(map(str.strip, _QUERY.value)):
        raise ValueError("A --query is empty.")
    if _ATTENTION_PLOT.value:
        validate_plot()
    elif pooling() == "none":
        if not _OUTPUT_FILE.value:
            raise ValueError("--query and --sts_file compare whole texts: use another --pooling than none.")
        if _NORMALIZE.value:
            raise ValueError("--normalize is for vectors of texts: set --pooling.")
    elif _OUTPUT_FILE.value and _FORMAT.value == "jsonl":
        raise ValueError(f"--pooling={pooling()} gives one vector a text: write them with --format=npz or tfrecord.")
    layers()


def validate_plot() -> None:
    path = Path(_ATTENTION_PLOT.value)
    if path.suffix == ".png" or path.is_file():
        raise ValueError(f"--attention_plot={path} should be a directory: there is a picture for each layer.")
    if _POOLING.value or _NORMALIZE.value:
        raise ValueError("--attention_plot draws no vectors: leave out --pooling and --normalize.")
    command_line.check_output_dir(_ATTENTION_PLOT.name, _ATTENTION_PLOT.value)


def pooling() -> str:
    return _POOLING.value or ("none" if _OUTPUT_FILE.value else "mean")


def layers() -> tuple[int, ...] | None:
    """The numbers of --layers; None where the pooling decides."""
    if pooling() != "none" and not _LAYERS.present:
        return None
    try:
        return tuple(map(int, _LAYERS.value.split(",")))
    except ValueError:
        raise ValueError(f"--layers={_LAYERS.value} should be numbers with commas between them, as -1,-2.") from None


def texts() -> Iterator[str | tuple[str, str]]:
    """What --text or --input_file give. A blank line is a text, too, as in the original: numbers of lines stay."""
    for line in _TEXT.value or read_lines(_INPUT_FILE.value):
        yield pair_or_text(to_unicode(line).strip())


def pair_or_text(line: str) -> str | tuple[str, str]:
    """A pair is parted where the original parts it: at the last three bars that have spaces around them."""
    first, bars, second = line.rpartition(" ||| ")
    return (first, second) if bars else line


def texts_to_draw() -> dict[int, str | tuple[str, str]]:
    """Texts that are not blank, by the numbers of their lines."""
    drawn = {}
    for number, text in enumerate(texts(), start=1):
        if "".join(text).strip():
            drawn[number] = text
        if len(drawn) > _MOST_TEXTS_IN_PICTURES:
            raise ValueError(
                f"--attention_plot draws no more than {_MOST_TEXTS_IN_PICTURES} texts, each with a picture a layer. "
                "Give those that you want to see by --text, or put them into a file of their own."
            )
    if not drawn:
        raise ValueError("There is nothing to draw: all texts are blank.")
    return drawn


def count_lines() -> int:
    if _TEXT.value:
        return len(_TEXT.value)
    if not os.path.isfile(_INPUT_FILE.value):
        raise FileNotFoundError(f"There is no file {_INPUT_FILE.value} (--input_file).")
    if not (count := sum(1 for _ in read_lines(_INPUT_FILE.value))):
        raise ValueError(f"--input_file={_INPUT_FILE.value} is empty. It should have a text a line.")
    return count


@contextlib.contextmanager
def progress_bar(total: int, unit: str, doing: str = "Encoding"):
    from tqdm import tqdm

    with tqdm(total=total, desc=doing, unit=f" {unit}") as bar:
        yield bar.update


def write_features(encoder, num_lines: int) -> None:
    from tasks.vector_files import write_token_vectors, write_vectors

    with progress_bar(num_lines, "lines") as progress:
        options = {"batch_size": _BATCH_SIZE.value, "progress": progress}
        if pooling() == "none":
            vectors = encoder.token_vectors(texts(), layers(), **options)
            write_token_vectors(_OUTPUT_FILE.value, _FORMAT.value, vectors, layers())
        else:
            vectors = encoder.vectors(texts(), pooling(), layers(), _NORMALIZE.value, **options)
            write_vectors(_OUTPUT_FILE.value, _FORMAT.value, vectors)
    logging.info("Wrote the vectors of %d lines to %s.", num_lines, _OUTPUT_FILE.value)


def search(encoder, num_lines: int) -> None:
    queries = [pair_or_text(query.strip()) for query in _QUERY.value]
    with progress_bar(num_lines, "lines") as progress:
        found = encoder.nearest(
            queries, texts(), _TOP_K.value, pooling(), layers(), batch_size=_BATCH_SIZE.value, progress=progress
        )
    for query, matches in zip(_QUERY.value, found, strict=True):
        print(query)
        for number, cosine, text in matches:
            print(f"   {cosine:.4f}  line {number + 1}: {text if isinstance(text, str) else ' ||| '.join(text)}")


def draw(encoder, drawn: dict[int, str | tuple[str, str]]) -> None:
    from tasks.attention_plots import write_plots

    num_layers = encoder.config.num_hidden_layers if layers() is None else len(layers())
    with progress_bar(len(drawn) * num_layers, "pictures", "Drawing") as progress:
        paths = write_plots(_ATTENTION_PLOT.value, encoder, drawn, layers(), progress)
    logging.info("Pictures written to %s: %d.", _ATTENTION_PLOT.value, len(paths))


def score(encoder, examples) -> None:
    from tasks.vectors import correlations

    pairs = [(example.text_a, example.text_b) for example in examples]
    with progress_bar(2 * len(pairs), "texts") as progress:
        cosines = encoder.similarities(pairs, pooling(), layers(), batch_size=_BATCH_SIZE.value, progress=progress)
    for name, value in correlations(cosines, [example.label for example in examples]).items():
        print(f"{name} = {value:.4f}")
    print(f"pairs = {len(pairs)}")


def main() -> None:
    validate_flags()
    if _USE_TPU.value:
        logging.info("--use_tpu: vectors are computed on the devices of this machine all the same.")
    # Read first: what is wrong with a file is told before the model is loaded.
    examples = read_split(GLUE_TASKS["sts-b"], Path(_STS_FILE.value), has_labels=True) if _STS_FILE.value else []
    num_lines = 0 if _STS_FILE.value else count_lines()
    drawn = texts_to_draw() if _ATTENTION_PLOT.value else {}

    command_line.load_tensorflow()  # late, so that --help does not wait for it
    from tasks.many_texts import compute_batches_on_a_core_each, num_cores
    from tasks.vectors import TextEncoder, choose_layers
    from training.memory import keep_freed_memory
    from training.memory_estimate import num_parameters

    keep_freed_memory()
    num_batches = (num_lines or 2 * len(examples)) // _BATCH_SIZE.value
    # Each core has to get its share. Vectors of tokens are so large that only few batches are under way.
    if pooling() != "none" and num_batches >= 2 * num_cores():
        compute_batches_on_a_core_each()
    encoder = TextEncoder.load(
        _INIT_CHECKPOINT.value,
        _VOCAB_FILE.value,
        _BERT_CONFIG_FILE.value,
        _DO_LOWER_CASE.value,
        _MAX_SEQ_LENGTH.value,
    )
    choose_layers(encoder.config, pooling(), layers())  # refuses those that the model does not have
    if command_line.is_dry_run():
        facts = {"model": _INIT_CHECKPOINT.value, "texts": f"{len(examples) or len(drawn) or num_lines:,}"}
        command_line.end_dry_run(facts | command_line.weights_memory(4 * num_parameters(encoder.config)))
    if examples:
        score(encoder, examples)
    elif _QUERY.value:
        search(encoder, num_lines)
    elif drawn:
        draw(encoder, drawn)
    else:
        write_features(encoder, num_lines)


if __name__ == "__main__":
    command_line.run(main)
