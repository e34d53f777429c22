"""Fine-tunes BERT to label sentences or pairs of them, and labels them: GLUE, XNLI, or your own data. Examples:

    python run_classifier.py --task_name=MRPC --data_dir=glue/MRPC --init_checkpoint=uncased_L-12_H-768_A-12 \\
      --output_dir=out/mrpc --do_train --do_eval --do_predict

    python run_classifier.py --task_name=custom --train_file=train.csv --eval_file=dev.csv --text_column=review \\
      --label_column=stars --init_checkpoint=uncased_L-12_H-768_A-12 --output_dir=out/reviews --do_train --do_eval

    echo 'What a charming film.' | python run_classifier.py --output_dir=out/reviews --do_predict --predict_file=-

The same command continues a run that was stopped or killed; exit code 75 says that it has to be run again.
"""

import functools
import sys
from pathlib import Path
from typing import NamedTuple

from absl import flags

import command_line
import fine_tuning_flags
import training_flags
from data.examples import Columns, Example, sample
from data.glue import GLUE_TASKS, XNLI_LANGUAGES, task_name
from data.sentence_features import LONG_TEXTS, SentenceEncoder
from data.sentence_sets import GlueSets, NamedExamples, SentenceSets, Tables, TfdsSets, XnliSets
from data.tokenization import FullTokenizer
from fine_tuning_flags import DO_PREDICT, DO_TRAIN, OUTPUT_DIR, PREDICT_BATCH_SIZE, trained_dir
from flag_help import heading
from tasks.settings import SETTINGS_FILE

command_line.offer_dry_run()

heading("Required")
_TASK_NAME = flags.DEFINE_string(
    "task_name",
    None,
    f"Learn this task: {', '.join(GLUE_TASKS)}, ax (the diagnostic set), xnli, or custom for data of your own. "
    "Not needed with --tfds_name, nor with --predict_file=-.",
)

heading("Data")
_DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "The files lie in this directory, as downloaded: train.tsv, dev.tsv, test.tsv."
)
_TRAIN_FILE = flags.DEFINE_string(
    "train_file", None, "With --task_name=custom, train on this table: .tsv, .csv, .jsonl or .json."
)
_EVAL_FILE = flags.DEFINE_string("eval_file", None, "With --task_name=custom, evaluate on this table.")
_PREDICT_FILE = flags.DEFINE_string(
    "predict_file", None, "With --task_name=custom, label this table; with -, label what comes on standard input."
)
_TEXT_COLUMN = flags.DEFINE_string(
    "text_column", "text", "The text stands in this column; without a header, give its number, from 0."
)
_TEXT_PAIR_COLUMN = flags.DEFINE_string(
    "text_pair_column", None, "The second text of a pair stands in this column, if there are pairs."
)
_LABEL_COLUMN = flags.DEFINE_string("label_column", "label", "The label stands in this column.")
_ID_COLUMN = flags.DEFINE_string(
    "id_column", None, "Take the ids of predictions.jsonl from this column; by default rows are counted."
)
_MULTI_LABEL = flags.DEFINE_bool("multi_label", False, "Whether a text may have several labels, or none.")
_LABEL_SEPARATOR = flags.DEFINE_string("label_separator", ",", "Several labels in a column are parted by this.")
_REGRESSION = flags.DEFINE_bool("regression", False, "Whether the label is a number to predict.")
_TSV_QUOTES = flags.DEFINE_bool("tsv_quotes", False, "Whether fields of a .tsv may be quoted, as spreadsheets do.")
_SKIP_BAD_ROWS = flags.DEFINE_bool("skip_bad_rows", False, "Whether to count rows without text or label and go on.")
_MAX_TRAIN_EXAMPLES = flags.DEFINE_integer(
    "max_train_examples", None, "Train on this many examples, drawn at random, instead of all.", lower_bound=1
)
_TFDS_NAME = flags.DEFINE_string(
    "tfds_name", None, "Read this set of tensorflow-datasets instead of files; --task_name=custom is implied."
)
_TFDS_SPLITS = flags.DEFINE_list(
    "tfds_splits",
    ["train", "validation", "test"],
    "Train on the first of these splits of --tfds_name, evaluate on the second, and predict the third.",
)
_XNLI_LANGUAGE = flags.DEFINE_enum("xnli_language", "zh", list(XNLI_LANGUAGES), "Evaluate XNLI in this language.")
_XNLI_TRAIN_LANGUAGE = flags.DEFINE_enum(
    "xnli_train_language", None, list(XNLI_LANGUAGES), "Train XNLI in this language, if in another: en for zero-shot."
)

heading("Model")
_MAX_SEQ_LENGTH = flags.DEFINE_integer(
    "max_seq_length",
    128,
    "A sequence has at most this many pieces, [CLS] and [SEP] among them; longer texts are cut. Pairs need 5.",
    lower_bound=3,
)
_LONG_TEXT = flags.DEFINE_enum(
    "long_text",
    "head",
    list(LONG_TEXTS),
    "Keep this of a text that is too long: its head, its tail, a quarter from its head and the rest from its tail "
    "(head_tail), or all of it in windows that vote.",
)
_BILSTM_HEAD = flags.DEFINE_bool("bilstm_head", False, "Whether a BiLSTM takes the place of the pooler.")

heading("Training")
_DO_EVAL = flags.DEFINE_bool("do_eval", False, "Whether to evaluate on the development set.")
_EVAL_BATCH_SIZE = flags.DEFINE_integer(
    "eval_batch_size", 8, "A batch of the evaluation has this many sequences.", lower_bound=1
)
_LABEL_SMOOTHING = flags.DEFINE_float(
    "label_smoothing", 0.0, "This part of each target is spread over all labels.", lower_bound=0.0, upper_bound=1.0
)
_CLASS_WEIGHTS = flags.DEFINE_enum(
    "class_weights", "none", ["none", "auto"], "With auto, rare classes count for more, so that all count the same."
)
_NUM_TRIALS = flags.DEFINE_integer(
    "num_trials",
    1,
    "Train this many times, from seeds that follow each other, in --output_dir/trial-…; the best one ends up in "
    "--output_dir itself, with mean and deviation of all in trials.json.",
    lower_bound=1,
)

heading("Output")
_GLUE_SUBMISSION = flags.DEFINE_bool(
    "glue_submission", False, "Whether --do_predict also writes a file for GLUE's server, e.g. MRPC.tsv."
)

if __name__ == "__main__":
    command_line.parse_flags(__doc__)  # --help and a wrong flag do not wait for TensorFlow
    command_line.load_tensorflow()

import fine_tuning
from fine_tuning import FineTuning
from modeling.models import SentenceModel
from tasks import sentence_results, sentences
from tasks.pretrained import Pretrained
from tasks.sentence_classifier import SentenceClassifier
from tasks.sentence_data import EncodedSet, parser
from tasks.sentences import SentenceSettings, SentenceTask
from training.evaluation import write_results
from training.strategy import is_chief
from training.trials import run_trials, trial_dir


def validate_flags() -> None:
    """Refuses what cannot work, before any of it is done."""
    fine_tuning_flags.validate()
    if not (DO_TRAIN.value or _DO_EVAL.value or DO_PREDICT.value):
        raise ValueError("At least one of --do_train, --do_eval and --do_predict must be set.")
    if _PREDICT_FILE.value == "-":
        if DO_TRAIN.value or _DO_EVAL.value:
            raise ValueError("--predict_file=- asks a model that is there: use --do_predict alone.")
        return
    if not _TASK_NAME.value and not _TFDS_NAME.value:
        raise ValueError(f"--task_name is missing: {', '.join(GLUE_TASKS)}, ax, xnli or custom.")
    if _MULTI_LABEL.value and _REGRESSION.value:
        raise ValueError("--multi_label and --regression contradict each other.")
    if _CLASS_WEIGHTS.value == "auto" and (_MULTI_LABEL.value or _REGRESSION.value):
        raise ValueError("--class_weights=auto is for one label a text, not for --multi_label or --regression.")
    if _TFDS_NAME.value and _MULTI_LABEL.value:
        raise ValueError("--multi_label is for tables; sets of tensorflow-datasets have one label a text here.")
    if _GLUE_SUBMISSION.value and (_TFDS_NAME.value or task_name(_TASK_NAME.value) not in (*GLUE_TASKS, "ax")):
        raise ValueError("--glue_submission is for the sets of GLUE.")
    if _NUM_TRIALS.value > 1 and not (DO_TRAIN.value and _DO_EVAL.value):
        raise ValueError("--num_trials needs --do_train, and --do_eval to tell which is best.")
    if len(_TFDS_SPLITS.value) != 3:
        raise ValueError(f"--tfds_splits={','.join(_TFDS_SPLITS.value)} should name three splits.")


def open_sets() -> SentenceSets:
    """Where the examples are, by the flags."""
    kind = "multi_label" if _MULTI_LABEL.value else "regression" if _REGRESSION.value else "single_label"
    columns = Columns(_TEXT_COLUMN.value, _TEXT_PAIR_COLUMN.value, _LABEL_COLUMN.value, _ID_COLUMN.value)
    if _TFDS_NAME.value:
        return TfdsSets(_TFDS_NAME.value, _DATA_DIR.value, kind, columns, tuple(_TFDS_SPLITS.value))
    name = task_name(_TASK_NAME.value)
    if name == "custom":
        return Tables.find(
            _DATA_DIR.value,
            (_TRAIN_FILE.value, _EVAL_FILE.value, _PREDICT_FILE.value),
            kind=kind,
            columns=columns,
            label_separator=_LABEL_SEPARATOR.value,
            quotes=_TSV_QUOTES.value or None,
            skip_bad_rows=_SKIP_BAD_ROWS.value,
        )
    if name not in (*GLUE_TASKS, "ax", "xnli"):
        raise ValueError(f"--task_name={_TASK_NAME.value} is not known: {', '.join(GLUE_TASKS)}, ax, xnli or custom.")
    if not _DATA_DIR.value:
        raise ValueError(f"--data_dir is missing: the directory with the files of {_TASK_NAME.value}.")
    if name == "xnli":
        return XnliSets(_DATA_DIR.value, _XNLI_LANGUAGE.value, _XNLI_TRAIN_LANGUAGE.value)
    return GlueSets(name, _DATA_DIR.value)


def label_standard_input() -> None:
    """A quick look: a text a line, or `a ||| b`, each with its label and how sure the model is."""
    classifier = SentenceClassifier.load(OUTPUT_DIR.value)
    if command_line.is_dry_run():
        facts = {"model": OUTPUT_DIR.value, "texts": "from standard input"}
        command_line.end_dry_run(facts | command_line.weights_memory(4 * classifier.num_parameters))
    for line in filter(None, map(str.strip, sys.stdin)):
        text = tuple(map(str.strip, line.split("|||", 1))) if "|||" in line else line
        [prediction] = classifier.predict([text])
        sure = "  ".join(f"{label} {p:.3f}" for label, p in prediction.probabilities.items())
        print(f"{prediction.label}\t{line}\t{sure}".rstrip("\t"), flush=True)


def main() -> None:
    validate_flags()
    if _PREDICT_FILE.value == "-":
        return label_standard_input()
    sets = open_sets()
    train_examples = sets.train() if DO_TRAIN.value else []
    settings, found = find_model(sets, train_examples)
    train_examples = sample(train_examples, _MAX_TRAIN_EXAMPLES.value)
    evaluation = list(sets.evaluation()) if _DO_EVAL.value or training_flags.evaluates_while_training() else []
    prediction = list(sets.prediction()) if DO_PREDICT.value else []

    for named in evaluation:
        sentences.label_ids(named.examples, settings)  # a wrong label is told before minutes of encoding

    strategy = training_flags.start()
    first_seed = training_flags.seed(trial_dir(OUTPUT_DIR.value, 0, _NUM_TRIALS.value), strategy)
    fine_tuning.check_before_encoding(strategy, _EVAL_BATCH_SIZE, PREDICT_BATCH_SIZE)
    fine_tuning.end_if_dry_run(
        strategy,
        functools.partial(SentenceModel, found.config, settings.num_outputs, settings.bilstm_head),
        found,
        settings.max_seq_length,
        training=len(train_examples),
        evaluation=sum(len(named.examples) for named in evaluation),
        prediction=sum(len(named.examples) for named in prediction),
    )
    data = encode(strategy, settings, found, train_examples, evaluation, prediction)
    run_trials(
        OUTPUT_DIR.value,
        first_seed,
        _NUM_TRIALS.value,
        deciding_metric(settings),
        is_chief(strategy),
        functools.partial(run_trial, strategy, settings, found, data),
    )


def find_model(sets: SentenceSets, train_examples: list[Example]) -> tuple[SentenceSettings, Pretrained]:
    """What there is to use, if nothing is to be trained; else what the flags and the training data make of it."""
    if not DO_TRAIN.value and (directory := trained_dir()):
        settings = SentenceSettings.load(directory)
        return settings, fine_tuning.find_pretrained(settings.max_seq_length)
    found = fine_tuning.find_pretrained(_MAX_SEQ_LENGTH.value)
    labels = sets.labels
    if labels is None and not train_examples:
        raise ValueError(
            f"Nothing tells the labels: there is no {SETTINGS_FILE} in --output_dir or --init_checkpoint, and no "
            "--do_train."
        )
    if labels is None:
        labels = sentences.find_labels(train_examples, sets.kind, "the training data")
    settings = SentenceSettings(
        kind=sets.kind,
        labels=labels,
        do_lower_case=found.do_lower_case,
        max_seq_length=_MAX_SEQ_LENGTH.value,
        long_text=_LONG_TEXT.value,
        bilstm_head=_BILSTM_HEAD.value,
        metrics=sets.metrics,
        has_pairs=any(example.text_b is not None for example in train_examples),
    )
    training_flags.check_best_metric(sentence_results.metric_names(settings))
    return settings, found


def deciding_metric(settings: SentenceSettings) -> str:
    """The figure by which the best of several trials is chosen: --keep_best_metric, or the official one of the task."""
    usual = "pearson" if settings.kind == "regression" else "accuracy"
    return training_flags.best_metric() or f"eval_{(*settings.metrics, usual)[0]}"


class Data(NamedTuple):
    """All sets, encoded; trials share them."""

    train: EncodedSet | None
    evaluation: list[tuple[NamedExamples, EncodedSet]]
    prediction: list[tuple[NamedExamples, EncodedSet]]


def encode(strategy, settings: SentenceSettings, found: Pretrained, train, evaluation, prediction) -> Data:
    tokenizer = FullTokenizer(vocab=found.vocab, do_lower_case=settings.do_lower_case)
    encoder = SentenceEncoder(tokenizer, settings.max_seq_length, settings.long_text)

    def write(name: str, examples: list[Example], has_labels: bool = True) -> EncodedSet:
        path = fine_tuning.record_path(strategy, f"{name}.tf_record")
        return EncodedSet.write(path, examples, settings, encoder, has_labels)

    return Data(
        write("train", train) if train else None,
        [(named, write(f"eval{named.suffix}", named.examples)) for named in evaluation],
        [(named, write(f"predict{named.suffix}", named.examples, has_labels=False)) for named in prediction],
    )


def run_trial(
    strategy, settings: SentenceSettings, found: Pretrained, data: Data, output_dir: str, seed: int
) -> dict[str, float]:
    """Trains, evaluates and predicts, as the flags say; gives the figures of the first evaluation."""
    with strategy.scope():
        options = training_flags.model_options(seed)
        model = SentenceModel(found.config, settings.num_outputs, settings.bilstm_head, **options)
    tuning = FineTuning(strategy, model, parser(settings), settings.max_seq_length)
    ask = [
        tuning.predictions(encoded.records, _EVAL_BATCH_SIZE.value, "eval_batch_size") for _, encoded in data.evaluation
    ]
    if DO_TRAIN.value:
        evaluate = (lambda: data.evaluation[0][1].figures(ask[0]())) if data.evaluation else None
        step = train(tuning, settings, found, data.train, output_dir, seed, evaluate)
    else:
        step = fine_tuning.load_trained(model, output_dir, found)
    results = []
    for (named, encoded), logits_of in zip(data.evaluation, ask, strict=True) if _DO_EVAL.value else ():
        logits = logits_of(f"Evaluating{named.suffix}")
        results.append(encoded.figures(logits))
        if is_chief(strategy):
            write_results(
                output_dir, step, results[-1] | {"loss": results[-1]["eval_loss"]}, f"eval_results{named.suffix}"
            )
            sentence_results.write_evaluation(
                output_dir, settings, results[-1], encoded.probabilities(logits), encoded.labels, named.suffix
            )
    for named, encoded in data.prediction:
        logits = tuning.predictions(encoded.records, PREDICT_BATCH_SIZE.value, "predict_batch_size")("Predicting")
        if is_chief(strategy):
            write_answers(output_dir, settings, named, encoded.probabilities(logits))
    return results[0] if results else {}


def train(tuning, settings: SentenceSettings, found: Pretrained, train_set: EncodedSet, output_dir, seed, evaluate):
    """Trains, and gives the step whose weights the model has then."""
    weights = None
    if _CLASS_WEIGHTS.value == "auto":
        weights = sentences.balanced_weights(train_set.labels, len(settings.labels))
    return tuning.train(
        SentenceTask(settings.kind, _LABEL_SMOOTHING.value, weights),
        train_set.records,
        found,
        output_dir,
        seed,
        settings,
        evaluate if training_flags.evaluates_while_training() else None,
        {"label_smoothing": _LABEL_SMOOTHING.value, "class_weights": _CLASS_WEIGHTS.value},
    ).step


def write_answers(output_dir: str, settings: SentenceSettings, named: NamedExamples, probabilities) -> None:
    sentence_results.write_predictions(output_dir, settings, named.examples, probabilities, named.suffix)
    if _GLUE_SUBMISSION.value:
        path = Path(output_dir) / f"{named.test_set.submission}.tsv"
        sentence_results.write_submission(path, settings, named, probabilities)


if __name__ == "__main__":
    command_line.run(main)
