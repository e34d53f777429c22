"""Answers questions about a text: fine-tunes BERT on SQuAD 1.1, SQuAD 2.0 or data of their shape. Example:

    python run_squad.py --train_file=train-v1.1.json --predict_file=dev-v1.1.json \\
      --init_checkpoint=uncased_L-12_H-768_A-12 --output_dir=out/squad --do_train --do_predict \\
      --train_batch_size=12 --learning_rate=3e-5 --num_train_epochs=2

Writes predictions.json, nbest_predictions.json and null_odds.json, and where --predict_file has answers, the official
scores to eval_results.txt. With --raw_results_in, logits that were kept are made into answers again without a model.
The same command continues a run that was stopped or killed; exit code 75 says that it has to be run again.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from absl import flags

import command_line
import fine_tuning_flags
import training_flags
from data.squad import Question, read_questions
from data.squad_features import FIRST_UNIQUE_ID
from data.tokenization import FullTokenizer
from fine_tuning_flags import DO_PREDICT, DO_TRAIN, OUTPUT_DIR, PREDICT_BATCH_SIZE, has_settings, trained_dir
from flag_help import heading
from tasks.settings import SETTINGS_FILE

command_line.offer_dry_run()

heading("Data")
_TRAIN_FILE = flags.DEFINE_string(
    "train_file", None, "Train on these questions with answers, in SQuAD's JSON. Needed with --do_train."
)
_PREDICT_FILE = flags.DEFINE_string(
    "predict_file",
    None,
    "Answer these questions, and score the answers if the right ones are there. Needed with --do_predict.",
)
_NUM_WORKERS = flags.DEFINE_integer("num_workers", 1, "This many processes make features of questions.", lower_bound=1)

heading("Model")
# `WindowEncoder` tells why it is out of range, which a bound here could not.
_MAX_SEQ_LENGTH = flags.DEFINE_integer(
    "max_seq_length",
    384,
    "A window, which is the question and part of the context, has at most this many pieces. From --max_query_length + "
    "4 to what the model takes.",
)
_DOC_STRIDE = flags.DEFINE_integer(
    "doc_stride", 128, "Each window starts this many pieces after the one before it.", lower_bound=1
)
_MAX_QUERY_LENGTH = flags.DEFINE_integer(
    "max_query_length", 64, "A question has at most this many pieces; longer ones are cut.", lower_bound=1
)
_VERSION_2_WITH_NEGATIVE = flags.DEFINE_bool(
    "version_2_with_negative", False, "Whether questions may have no answer, as in SQuAD 2.0."
)

heading("Output")
_N_BEST_SIZE = flags.DEFINE_integer(
    "n_best_size", 20, "Write this many answers to nbest_predictions.json.", lower_bound=1
)
_MAX_ANSWER_LENGTH = flags.DEFINE_integer(
    "max_answer_length", 30, "An answer has at most this many pieces.", lower_bound=1
)
_NULL_SCORE_DIFF_THRESHOLD = flags.DEFINE_string(
    "null_score_diff_threshold",
    "0.0",
    "A question has no answer where that scores higher than the best answer by more than this number. With auto it is "
    "the one that is best by F1 on --predict_file, which is then kept with the model.",
)
_OUTPUT_OFFSETS = flags.DEFINE_bool(
    "output_offsets", False, "Whether nbest_predictions.json tells where in the context each answer stands."
)
_RAW_RESULTS_OUT = flags.DEFINE_string("raw_results_out", None, "Keep the logits of --do_predict in this .npz file.")
_RAW_RESULTS_IN = flags.DEFINE_list(
    "raw_results_in", [], "Answer from logits in these files, averaged if several, instead of running a model."
)
_VERBOSE_LOGGING = flags.DEFINE_bool("verbose_logging", False, "Whether to tell where an answer's text was not found.")

if __name__ == "__main__":
    command_line.parse_flags(__doc__)  # --help and a wrong flag do not wait for TensorFlow
    command_line.load_tensorflow()

import fine_tuning
from data.squad_records import WindowRecords, window_records
from fine_tuning import FineTuning
from modeling.models import SpanModel
from tasks.pretrained import Pretrained
from tasks.spans import SpanTask, both_ends, parser
from tasks.squad import SquadSettings, question_texts
from tasks.squad_answers import AnswerSettings, FoundAnswers, answers, at_threshold, write_answers
from tasks.squad_logits import RawResults, average, load_raw, save_raw
from tasks.squad_scores import best_threshold, scores
from training.evaluation import write_results
from training.state import write_text
from training.strategy import is_chief


def validate_flags() -> None:
    """Refuses what cannot work, before any of it is done."""
    fine_tuning_flags.validate()
    if not DO_TRAIN.value and not DO_PREDICT.value:
        raise ValueError("At least one of --do_train and --do_predict must be set.")
    for file, flag in ((_TRAIN_FILE, DO_TRAIN), (_PREDICT_FILE, DO_PREDICT)):
        if flag.value and not file.value:
            raise ValueError(f"--{flag.name} needs --{file.name}.")
    if training_flags.evaluates_while_training() and not _PREDICT_FILE.value:
        raise ValueError("--eval_every_steps needs --predict_file, with answers.")
    if _RAW_RESULTS_IN.value and (DO_TRAIN.value or _RAW_RESULTS_OUT.value):
        raise ValueError("--raw_results_in answers from logits that are there: use it with --do_predict alone.")
    if _NULL_SCORE_DIFF_THRESHOLD.value != "auto":
        try:
            float(_NULL_SCORE_DIFF_THRESHOLD.value)
        except ValueError:
            raise ValueError(
                f"--null_score_diff_threshold={_NULL_SCORE_DIFF_THRESHOLD.value} should be a number, or auto."
            ) from None
    if _RAW_RESULTS_OUT.value:
        directory = Path(_RAW_RESULTS_OUT.value).parent
        if not directory.is_dir() and directory != Path(OUTPUT_DIR.value or ""):
            raise ValueError(f"--raw_results_out={_RAW_RESULTS_OUT.value}: there is no such directory.")
        command_line.check_output_file(_RAW_RESULTS_OUT.name, _RAW_RESULTS_OUT.value)


def check_answers(settings: SquadSettings, gold: dict[str, list[str]]) -> None:
    """Refuses what needs answers to score by, where there are none, or questions without an answer."""
    training_flags.check_best_metric(("f1", "exact" if settings.version_2_with_negative else "exact_match"))
    if _NULL_SCORE_DIFF_THRESHOLD.value == "auto" and not settings.version_2_with_negative:
        raise ValueError("--null_score_diff_threshold=auto needs --version_2_with_negative.")
    if not gold and (_NULL_SCORE_DIFF_THRESHOLD.value == "auto" or training_flags.evaluates_while_training()):
        raise ValueError(
            f"--null_score_diff_threshold=auto and --eval_every_steps need answers to score by, but "
            f"{_PREDICT_FILE.value} has none."
        )


def main() -> None:
    validate_flags()
    if _VERBOSE_LOGGING.value:
        logging.getLogger("tasks.squad_text").setLevel(logging.DEBUG)
    settings, found = find_model()
    tokenizer = FullTokenizer(vocab=found.vocab, do_lower_case=settings.do_lower_case)
    questions, gold = [], {}
    if DO_PREDICT.value or training_flags.evaluates_while_training():
        questions = read_questions(_PREDICT_FILE.value, False, settings.version_2_with_negative)
        gold = gold_answers(questions)
    check_answers(settings, gold)
    settings.encoder(tokenizer)  # refuses lengths that leave no room for text
    if _RAW_RESULTS_IN.value:
        return answer_from_logits(questions, gold, settings, tokenizer)

    strategy = training_flags.start()
    seed = training_flags.seed(OUTPUT_DIR.value, strategy)
    fine_tuning.check_before_encoding(strategy, PREDICT_BATCH_SIZE)
    if command_line.is_dry_run():
        sizes = {"prediction": len(questions)}
        if DO_TRAIN.value:
            sizes["training"] = len(read_questions(_TRAIN_FILE.value, True, settings.version_2_with_negative))
        make_model = functools.partial(SpanModel, found.config)
        fine_tuning.end_if_dry_run(strategy, make_model, found, settings.max_seq_length, **sizes)
    directory = fine_tuning.record_path(strategy, "")
    train_set = encode("train", _TRAIN_FILE.value, settings, tokenizer, directory) if DO_TRAIN.value else None
    asked = encode("eval", _PREDICT_FILE.value, settings, tokenizer, directory, questions) if questions else None
    with strategy.scope():
        model = SpanModel(found.config, **training_flags.model_options(seed))
    ask = None
    if asked:
        to_ask = FineTuning(strategy, model, parser(settings.max_seq_length, False), settings.max_seq_length)
        ask = to_ask.predictions(asked.records, PREDICT_BATCH_SIZE.value, "predict_batch_size", both_ends)
    if DO_TRAIN.value:
        evaluate = None
        if training_flags.evaluates_while_training():
            evaluate = evaluation(questions, asked, ask, gold, settings, tokenizer)
        step = train(strategy, model, settings, found, train_set, seed, evaluate)
    else:
        step = fine_tuning.load_trained(model, OUTPUT_DIR.value, found)
    if DO_PREDICT.value:
        raw = raw_results(ask("Predicting") if len(asked.records) else np.zeros([0, settings.max_seq_length, 2]))
        if is_chief(strategy):
            if _RAW_RESULTS_OUT.value:
                save_raw(_RAW_RESULTS_OUT.value, raw)
            tell(found_answers(questions, asked, raw, settings, tokenizer), gold, settings, step)


def answer_from_logits(questions, gold: dict[str, list[str]], settings: SquadSettings, tokenizer) -> None:
    """Makes answers of the logits in --raw_results_in. No model is needed."""
    command_line.check_output_dir(OUTPUT_DIR.name, OUTPUT_DIR.value)
    raw = average([load_raw(path) for path in _RAW_RESULTS_IN.value])
    if command_line.is_dry_run():
        windows = (
            f"{len(raw.unique_ids):,} windows; whether they are those of the questions shows when these are encoded"
        )
        command_line.end_dry_run({"logits": windows, "prediction": f"{len(questions):,} examples"})
    asked = encode("eval", _PREDICT_FILE.value, settings, tokenizer, OUTPUT_DIR.value, questions)
    if len(raw.unique_ids) != len(asked.table):
        raise ValueError(
            f"--raw_results_in has logits of {len(raw.unique_ids)} windows, but {_PREDICT_FILE.value} makes "
            f"{len(asked.table)}: use the file and the --max_seq_length, --doc_stride and --max_query_length that "
            "they were made with."
        )
    tell(found_answers(questions, asked, raw, settings, tokenizer), gold, settings, None)


def find_model() -> tuple[SquadSettings, Pretrained]:
    """What the flags say; where nothing is to be trained, flags that are not set say what they said in training."""
    told = {
        flag.name: flag.value
        for flag in (_MAX_SEQ_LENGTH, _DOC_STRIDE, _MAX_QUERY_LENGTH, _VERSION_2_WITH_NEGATIVE)
        if DO_TRAIN.value or flags.FLAGS[flag.name].present
    }
    if _NULL_SCORE_DIFF_THRESHOLD.value != "auto" and flags.FLAGS[_NULL_SCORE_DIFF_THRESHOLD.name].present:
        told["null_score_diff_threshold"] = float(_NULL_SCORE_DIFF_THRESHOLD.value)
    before = None
    if not DO_TRAIN.value and (directory := trained_dir()):
        before = SquadSettings.load(directory)
    elif DO_TRAIN.value and "null_score_diff_threshold" not in told and has_settings(OUTPUT_DIR.value):
        kept = SquadSettings.load(OUTPUT_DIR.value).null_score_diff_threshold  # a run that goes on, tuned before
        told["null_score_diff_threshold"] = kept
    settings = dataclasses.replace(before or SquadSettings(do_lower_case=True), **told)
    found = fine_tuning.find_pretrained(settings.max_seq_length, needs_weights=not _RAW_RESULTS_IN.value)
    if before is None:
        settings = dataclasses.replace(settings, do_lower_case=found.do_lower_case)
    return settings, found


def encode(
    name: str,
    input_file: str,
    settings: SquadSettings,
    tokenizer: FullTokenizer,
    directory: str | Path,
    questions: Sequence[Question] | None = None,
) -> WindowRecords:
    """The windows of a file of questions, made now or found from the last time."""
    return window_records(
        Path(directory) / f"{name}.tf_record",
        input_file,
        settings.encoder(tokenizer),
        name == "train",
        settings.version_2_with_negative,
        _NUM_WORKERS.value,
        questions,
    )


def gold_answers(questions: Sequence[Question]) -> dict[str, list[str]]:
    """Answers to score by; none at all where the file has none."""
    has_answers = any(question.answers for question in questions)
    return {q.id: [a.text for a in q.answers] for q in questions} if has_answers else {}


def train(
    strategy, model: SpanModel, settings: SquadSettings, found: Pretrained, train_set, seed: int, evaluate
) -> int:
    """Trains, and gives the step whose weights the model has then."""
    tuning = FineTuning(strategy, model, parser(settings.max_seq_length, True), settings.max_seq_length)
    return tuning.train(
        SpanTask(),
        train_set.records,
        found,
        OUTPUT_DIR.value,
        seed,
        settings,
        evaluate,
        num_examples=train_set.num_questions,  # the original counts epochs in questions
    ).step


def raw_results(logits: np.ndarray) -> RawResults:
    """[windows, T, 2] -> by the ids of the windows, which are numbered."""
    ids = np.arange(FIRST_UNIQUE_ID, FIRST_UNIQUE_ID + len(logits))
    return RawResults(ids, logits[..., 0], logits[..., 1])


def found_answers(questions, asked: WindowRecords, raw: RawResults, settings, tokenizer) -> FoundAnswers:
    how = AnswerSettings(
        n_best_size=_N_BEST_SIZE.value,
        max_answer_length=_MAX_ANSWER_LENGTH.value,
        do_lower_case=settings.do_lower_case,
        version_2_with_negative=settings.version_2_with_negative,
        null_score_diff_threshold=settings.null_score_diff_threshold,
    )
    return answers(question_texts(questions, asked.table, tokenizer), raw, how, with_offsets=_OUTPUT_OFFSETS.value)


def evaluation(questions, asked, ask, gold, settings, tokenizer) -> Callable[[], dict[str, float]]:
    """A function that scores the model as it is; tells of `f1` and `exact` or `exact_match`."""

    def evaluate() -> dict[str, float]:
        found = found_answers(questions, asked, raw_results(ask()), settings, tokenizer)
        result = scores(gold, found.predictions, None, settings.version_2_with_negative)
        return {name: float(value) for name, value in result.items() if name != "total"}

    return evaluate


def tell(found: FoundAnswers, gold: dict[str, list[str]], settings: SquadSettings, step: int | None) -> None:
    """Writes answers and, where the right ones are known, scores; `step` is None for logits from elsewhere."""
    if _NULL_SCORE_DIFF_THRESHOLD.value == "auto":
        threshold = best_threshold(gold, found.best_texts, found.null_odds)
        found = at_threshold(found, threshold)
        keep_threshold(threshold)
    Path(OUTPUT_DIR.value).mkdir(parents=True, exist_ok=True)
    write_answers(OUTPUT_DIR.value, found)
    if gold:
        result = scores(gold, found.predictions, None, settings.version_2_with_negative)
        if settings.version_2_with_negative:
            # The best thresholds choose among the best answers there are, not among those that a threshold left over.
            of_all = scores(gold, found.best_texts, found.null_odds, True)
            result |= {name: value for name, value in of_all.items() if name.startswith("best_")}
        write_results(OUTPUT_DIR.value, step or 0, {name: float(value) for name, value in result.items()})


def keep_threshold(threshold: float) -> None:
    """Keeps a threshold with the model, if there is one."""
    logging.info("The best null_score_diff_threshold is %g.", threshold)
    path = Path(OUTPUT_DIR.value) / SETTINGS_FILE
    if path.is_file():
        settings = SquadSettings.load(OUTPUT_DIR.value)
        write_text(path, dataclasses.replace(settings, null_score_diff_threshold=threshold).to_json())


if __name__ == "__main__":
    command_line.run(main)
