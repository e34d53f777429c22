"""Fine-tunes BERT to choose the right one of several endings, and chooses: SWAG, CODAH, or your own data. Examples:

    python run_multiple_choice.py --train_file=swag/train.csv --eval_file=swag/val.csv --train_batch_size=16 \\
      --learning_rate=2e-5 --init_checkpoint=uncased_L-12_H-768_A-12 --output_dir=out/swag --do_train --do_eval

    python run_multiple_choice.py --predict_file=questions.jsonl --output_dir=out/swag --do_predict

The same command continues a run that was stopped or killed; exit code 75 says that it has to be run again.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from absl import flags

import command_line
import fine_tuning_flags
import training_flags
from data.choices import FORMATS, Choice, read_choices
from data.examples import sample
from data.sentence_features import SentenceEncoder
from data.tokenization import FullTokenizer
from fine_tuning_flags import DO_PREDICT, DO_TRAIN, OUTPUT_DIR, PREDICT_BATCH_SIZE, trained_dir
from flag_help import heading

command_line.offer_dry_run()

heading("Data")
_TRAIN_FILE = flags.DEFINE_string("train_file", None, "Train on this file. Needed with --do_train.")
_EVAL_FILE = flags.DEFINE_string("eval_file", None, "Evaluate on this file. Needed with --do_eval.")
_PREDICT_FILE = flags.DEFINE_string("predict_file", None, "Choose from the endings of this file; labels are not read.")
_FORMAT = flags.DEFINE_enum(
    "format",
    "auto",
    list(FORMATS),
    "The files have this format: swag (.csv with a header), codah (.tsv without one: category, prompt, four endings, "
    'index of the right one) or jsonl ({"context": …, "endings": […], "label": 0} a line); auto goes by the end of '
    "their names.",
)
_MAX_TRAIN_EXAMPLES = flags.DEFINE_integer(
    "max_train_examples", None, "Train on this many examples, drawn at random, instead of all.", lower_bound=1
)

heading("Model")
_MAX_SEQ_LENGTH = flags.DEFINE_integer(
    "max_seq_length",
    128,
    "A context with one of its endings has at most this many pieces, [CLS] and [SEP] among them; longer ones are cut.",
    lower_bound=5,
)

heading("Training")
_DO_EVAL = flags.DEFINE_bool("do_eval", False, "Whether to evaluate on --eval_file.")
_EVAL_BATCH_SIZE = flags.DEFINE_integer(
    "eval_batch_size", 8, "A batch of the evaluation has this many examples, each with all its endings.", lower_bound=1
)
_LABEL_SMOOTHING = flags.DEFINE_float(
    "label_smoothing", 0.0, "This part of each target is spread over all choices.", lower_bound=0.0, upper_bound=1.0
)
_NUM_TRIALS = flags.DEFINE_integer(
    "num_trials",
    1,
    "Train this many times, from seeds that follow each other, in --output_dir/trial-…; the best one ends up in "
    "--output_dir itself, with mean and deviation of all in trials.json.",
    lower_bound=1,
)

if __name__ == "__main__":
    command_line.parse_flags(__doc__)  # --help and a wrong flag do not wait for TensorFlow
    command_line.load_tensorflow()

import fine_tuning
from fine_tuning import FineTuning
from modeling.models import ChoiceModel
from tasks.choices import (
    METRIC_NAMES,
    ChoiceSettings,
    ChoiceTask,
    EncodedChoices,
    choice_probabilities,
    parser,
    write_predictions,
)
from tasks.pretrained import Pretrained
from training.evaluation import write_results
from training.strategy import is_chief
from training.trials import run_trials, trial_dir


def validate_flags() -> None:
    """Refuses what cannot work, before any of it is done."""
    fine_tuning_flags.validate()
    if not (DO_TRAIN.value or _DO_EVAL.value or DO_PREDICT.value):
        raise ValueError("At least one of --do_train, --do_eval and --do_predict must be set.")
    if DO_TRAIN.value and not _TRAIN_FILE.value:
        raise ValueError("--train_file is missing, which --do_train needs.")
    if evaluates() and not _EVAL_FILE.value:
        raise ValueError("--eval_file is missing, which --do_eval and --eval_every_steps need.")
    if DO_PREDICT.value and not _PREDICT_FILE.value:
        raise ValueError("--predict_file is missing, which --do_predict needs.")
    if _NUM_TRIALS.value > 1 and not (DO_TRAIN.value and _DO_EVAL.value):
        raise ValueError("--num_trials needs --do_train, and --do_eval to tell which is best.")
    training_flags.check_best_metric(METRIC_NAMES)


def evaluates() -> bool:
    return _DO_EVAL.value or (DO_TRAIN.value and training_flags.evaluates_while_training())


def main() -> None:
    validate_flags()
    train_choices = read_choices(_TRAIN_FILE.value, _FORMAT.value) if DO_TRAIN.value else []
    train_choices = sample(train_choices, _MAX_TRAIN_EXAMPLES.value)
    settings, found = find_model(train_choices)
    known = {"format": _FORMAT.value, "num_choices": settings.num_choices}
    evaluation = read_choices(_EVAL_FILE.value, **known) if evaluates() else []
    prediction = read_choices(_PREDICT_FILE.value, has_labels=False, **known) if DO_PREDICT.value else []

    strategy = training_flags.start()
    first_seed = training_flags.seed(trial_dir(OUTPUT_DIR.value, 0, _NUM_TRIALS.value), strategy)
    fine_tuning.check_before_encoding(strategy, _EVAL_BATCH_SIZE, PREDICT_BATCH_SIZE)
    sizes = {"training": len(train_choices), "evaluation": len(evaluation), "prediction": len(prediction)}
    make_model = functools.partial(ChoiceModel, found.config)
    fine_tuning.end_if_dry_run(strategy, make_model, found, settings.max_seq_length, settings.num_choices, **sizes)
    data = encode(strategy, settings, found, train_choices, evaluation, prediction)
    run_trials(
        OUTPUT_DIR.value,
        first_seed,
        _NUM_TRIALS.value,
        training_flags.best_metric() or "eval_accuracy",
        is_chief(strategy),
        functools.partial(run_trial, strategy, settings, found, data),
    )


def find_model(train_choices: list[Choice]) -> tuple[ChoiceSettings, Pretrained]:
    """What there is to use, if nothing is to be trained; else what the flags and the training data make of it."""
    if not DO_TRAIN.value:
        settings = ChoiceSettings.load(trained_dir() or OUTPUT_DIR.value)
        return settings, fine_tuning.find_pretrained(settings.max_seq_length)
    found = fine_tuning.find_pretrained(_MAX_SEQ_LENGTH.value)
    return ChoiceSettings(len(train_choices[0].endings), found.do_lower_case, _MAX_SEQ_LENGTH.value), found


class Data(NamedTuple):
    """All sets, encoded; trials share them."""

    train: EncodedChoices | None
    evaluation: EncodedChoices | None
    prediction: EncodedChoices | None


def encode(strategy, settings: ChoiceSettings, found: Pretrained, train, evaluation, prediction) -> Data:
    tokenizer = FullTokenizer(vocab=found.vocab, do_lower_case=settings.do_lower_case)
    encoder = SentenceEncoder(tokenizer, settings.max_seq_length)

    def write(name: str, choices: list[Choice], has_labels: bool = True) -> EncodedChoices | None:
        if not choices:
            return None
        path = fine_tuning.record_path(strategy, f"{name}.tf_record")
        return EncodedChoices.write(path, choices, settings, encoder, has_labels)

    return Data(write("train", train), write("eval", evaluation), write("predict", prediction, has_labels=False))


def run_trial(
    strategy, settings: ChoiceSettings, found: Pretrained, data: Data, output_dir: str, seed: int
) -> dict[str, float]:
    """Trains, evaluates and predicts, as the flags say; gives the figures of the evaluation."""
    with strategy.scope():
        model = ChoiceModel(found.config, **training_flags.model_options(seed))
    tuning = FineTuning(strategy, model, parser(settings), settings.max_seq_length)
    evaluate = evaluator(tuning, data.evaluation) if data.evaluation else None
    if DO_TRAIN.value:
        step = train(tuning, settings, found, data.train, output_dir, seed, evaluate)
    else:
        step = fine_tuning.load_trained(model, output_dir, found)
    results = {}
    if _DO_EVAL.value:
        results = evaluate("Evaluating")
        if is_chief(strategy):
            write_results(output_dir, step, results | {"loss": results["eval_loss"]})
    if data.prediction:
        ask = tuning.predictions(data.prediction.records, PREDICT_BATCH_SIZE.value, "predict_batch_size")
        probabilities = choice_probabilities(ask("Predicting"))
        if is_chief(strategy):
            write_predictions(output_dir, data.prediction.choices, probabilities)
    return results


def evaluator(tuning: FineTuning, encoded: EncodedChoices) -> Callable[..., dict[str, float]]:
    """A function that tells the figures of the model as it is then, with a bar if it is given a description."""
    ask = tuning.predictions(encoded.records, _EVAL_BATCH_SIZE.value, "eval_batch_size")
    return lambda description=None: encoded.figures(ask(description))


def train(tuning, settings: ChoiceSettings, found: Pretrained, train_set: EncodedChoices, output_dir, seed, evaluate):
    """Trains, and gives the step whose weights the model has then."""
    return tuning.train(
        ChoiceTask(_LABEL_SMOOTHING.value),
        train_set.records,
        found,
        output_dir,
        seed,
        settings,
        evaluate if training_flags.evaluates_while_training() else None,
        {"label_smoothing": _LABEL_SMOOTHING.value},
    ).step


if __name__ == "__main__":
    command_line.run(main)
