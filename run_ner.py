"""Finds named entities: fine-tunes BERT to tag words, and tags them. Example:

    python run_ner.py --train_file=train.conll --eval_file=dev.conll --predict_file=test.conll \\
      --init_checkpoint=cased_L-12_H-768_A-12 --output_dir=out/ner --do_train --do_eval --do_predict

Files have CoNLL columns (a word and its tag a line), JSON lines with spans, or KLUE's characters. The same command
continues a run that was stopped or killed; exit code 75 says that it has to be run again.
"""

import functools
import json
from collections.abc import Sequence
from pathlib import Path

from absl import flags

import command_line
import fine_tuning_flags
import training_flags
from data.ner import FORMATS, SCHEMES, TaggedText, read_tagged
from data.tokenization import FullTokenizer
from fine_tuning_flags import DO_PREDICT, DO_TRAIN, OUTPUT_DIR, PREDICT_BATCH_SIZE, trained_dir
from flag_help import heading

command_line.offer_dry_run()

heading("Data")
_TRAIN_FILE = flags.DEFINE_string("train_file", None, "Train on this tagged text. Needed with --do_train.")
_EVAL_FILE = flags.DEFINE_string("eval_file", None, "Evaluate on this tagged text. Needed with --do_eval.")
_PREDICT_FILE = flags.DEFINE_string(
    "predict_file", None, "Tag this text, which is in the same format; tags may be missing."
)
_FORMAT = flags.DEFINE_enum(
    "format",
    "auto",
    list(FORMATS),
    "The files have this format: conll has a word a line, with columns parted by tabs or spaces; jsonl has lines as "
    '{"text": …, "entities": [{"start": 0, "end": 5, "type": "person"}]}; klue has a character a line; auto goes by '
    "the name and the first line of a file.",
)
_WORD_COLUMN = flags.DEFINE_integer(
    "word_column", 0, "The word stands in this column. Any number, from 0 on; negative ones count from the end."
)
_TAG_COLUMN = flags.DEFINE_integer("tag_column", -1, "The tag stands in this column. Any number, as in --word_column.")
_PREDICT_HAS_TAGS = flags.DEFINE_bool("predict_has_tags", True, "Whether --predict_file has a column of tags.")
_TAG_SCHEME = flags.DEFINE_enum(
    "tag_scheme", "auto", list(SCHEMES), "Tags mark by this scheme where entities start and end; auto sees which it is."
)

heading("Model")
_MAX_SEQ_LENGTH = flags.DEFINE_integer(
    "max_seq_length",
    128,
    "A sequence has at most this many pieces, [CLS] and [SEP] among them; longer texts go into several.",
    lower_bound=3,
)
_DOCUMENT_CONTEXT = flags.DEFINE_bool(
    "document_context", False, "Whether sequences are filled with neighbouring sentences, as in the paper."
)
_FEATURE_LAYERS = flags.DEFINE_list(
    "feature_layers",
    [],
    "Go the paper's feature-based way: the encoder stays as it is, these layers of it, e.g. -4,-3,-2,-1, are joined, "
    "and a BiLSTM is trained on them. By default the whole encoder is trained.",
)

heading("Training")
_DO_EVAL = flags.DEFINE_bool("do_eval", False, "Whether to evaluate on --eval_file.")
_EVAL_BATCH_SIZE = flags.DEFINE_integer(
    "eval_batch_size", 8, "A batch of the evaluation has this many sequences.", lower_bound=1
)
_NUM_TRIALS = flags.DEFINE_integer(
    "num_trials", 1, "Train from this many seeds; the best ends up in --output_dir, all in trials.json.", lower_bound=1
)

if __name__ == "__main__":
    command_line.parse_flags(__doc__)  # --help and a wrong flag do not wait for TensorFlow
    command_line.load_tensorflow()

import fine_tuning
from fine_tuning import FineTuning
from tasks.ner import (
    EncodedTexts,
    NerSettings,
    NerTask,
    check_types,
    conll_lines,
    find_tags,
    json_object,
    make_model,
    parser,
    tag_and_probability,
)
from tasks.pretrained import Pretrained
from training.evaluation import write_results
from training.state import write_text
from training.strategy import is_chief
from training.trials import run_trials, trial_dir


def validate_flags() -> None:
    """Refuses what cannot work, before any of it is done."""
    fine_tuning_flags.validate()
    wanted = ((_TRAIN_FILE, DO_TRAIN), (_EVAL_FILE, _DO_EVAL), (_PREDICT_FILE, DO_PREDICT))
    if not any(flag.value for _, flag in wanted):
        raise ValueError("At least one of --do_train, --do_eval and --do_predict must be set.")
    for file, flag in wanted:
        if flag.value and not file.value:
            raise ValueError(f"--{flag.name} needs --{file.name}.")
    if training_flags.evaluates_while_training() and not _EVAL_FILE.value:
        raise ValueError("--eval_every_steps needs --eval_file.")
    if _DOCUMENT_CONTEXT.value and _FORMAT.value not in ("auto", "conll"):
        raise ValueError("--document_context is for CoNLL columns: in other formats every text stands for itself.")
    if not all(layer.lstrip("-").isdigit() for layer in _FEATURE_LAYERS.value):
        raise ValueError(f"--feature_layers={','.join(_FEATURE_LAYERS.value)} should be numbers like -4,-3,-2,-1.")
    if _NUM_TRIALS.value > 1 and not (DO_TRAIN.value and _DO_EVAL.value):
        raise ValueError("--num_trials needs --do_train, and --do_eval to tell which is best.")
    training_flags.check_best_metric(("eval_f1", "eval_precision", "eval_recall", "eval_accuracy"))


def read(path: str, has_tags: bool = True) -> list[TaggedText]:
    tag_column = _TAG_COLUMN.value if has_tags else None
    return read_tagged(path, _FORMAT.value, _TAG_SCHEME.value, _WORD_COLUMN.value, tag_column)


def main() -> None:
    validate_flags()
    texts = {}
    if DO_TRAIN.value:
        texts["train"] = read(_TRAIN_FILE.value)
    if _DO_EVAL.value or training_flags.evaluates_while_training():
        texts["eval"] = read(_EVAL_FILE.value)
    if DO_PREDICT.value:
        texts["predict"] = read(_PREDICT_FILE.value, _PREDICT_HAS_TAGS.value)
    settings, found = find_model(texts.get("train"))
    for name, of_name in texts.items():
        check_types(of_name, settings)
        if (unit := unit_of(of_name)) != settings.unit:
            raise ValueError(
                f"The {name} file has tags of {unit}s, but the model has learned tags of {settings.unit}s: use files "
                "of one kind (CoNLL columns have words, the other formats characters)."
            )

    strategy = training_flags.start()
    first_seed = training_flags.seed(trial_dir(OUTPUT_DIR.value, 0, _NUM_TRIALS.value), strategy)
    fine_tuning.check_before_encoding(strategy, _EVAL_BATCH_SIZE, PREDICT_BATCH_SIZE)
    fine_tuning.end_if_dry_run(
        strategy,
        functools.partial(make_model, found.config, settings),
        found,
        settings.max_seq_length,
        **{name: len(of_name) for name, of_name in texts.items()},
    )
    tokenizer = FullTokenizer(vocab=found.vocab, do_lower_case=settings.do_lower_case)
    data = {
        name: EncodedTexts.write(fine_tuning.record_path(strategy, f"{name}.tf_record"), of_name, settings, tokenizer)
        for name, of_name in texts.items()
    }
    run_trials(
        OUTPUT_DIR.value,
        first_seed,
        _NUM_TRIALS.value,
        training_flags.best_metric() or "eval_f1",
        is_chief(strategy),
        functools.partial(run_trial, strategy, settings, found, data),
    )


def find_model(train_texts: Sequence[TaggedText] | None) -> tuple[NerSettings, Pretrained]:
    """What there is to use, if nothing is to be trained; else what the flags and the training data make of it."""
    if train_texts is None:
        settings = NerSettings.load(trained_dir() or OUTPUT_DIR.value)
        return settings, fine_tuning.find_pretrained(settings.max_seq_length)
    found = fine_tuning.find_pretrained(_MAX_SEQ_LENGTH.value)
    settings = NerSettings(
        tags=find_tags(train_texts),
        unit=unit_of(train_texts),
        do_lower_case=found.do_lower_case,
        max_seq_length=_MAX_SEQ_LENGTH.value,
        document_context=_DOCUMENT_CONTEXT.value,
        feature_layers=tuple(map(int, _FEATURE_LAYERS.value)),
    )
    return settings, found


def unit_of(texts: Sequence[TaggedText]) -> str:
    """What has a tag: a word, or, where characters were tagged, a piece."""
    return "piece" if texts[0].words is None else "word"


def run_trial(
    strategy, settings: NerSettings, found: Pretrained, data: dict[str, EncodedTexts], output_dir: str, seed: int
) -> dict[str, float]:
    """Trains, evaluates and predicts, as the flags say; gives the figures of both sets."""
    with strategy.scope():
        model = make_model(found.config, settings, **training_flags.model_options(seed))
    tuning = FineTuning(strategy, model, parser(settings), settings.max_seq_length, ("label_ids", "label_mask"))
    ask = None
    if "eval" in data:
        ask = tuning.predictions(data["eval"].records, _EVAL_BATCH_SIZE.value, "eval_batch_size", tag_and_probability)
    if DO_TRAIN.value:
        evaluate = (lambda: data["eval"].figures(ask())) if training_flags.evaluates_while_training() else None
        step = tuning.train(
            NerTask(),
            data["train"].records,
            found,
            output_dir,
            seed,
            settings,
            evaluate,
        ).step
    else:
        step = fine_tuning.load_trained(model, output_dir, found)
    results: dict[str, float] = {}
    if _DO_EVAL.value:
        told = ask("Evaluating")
        results = data["eval"].figures(told)
        if is_chief(strategy):
            write_results(output_dir, step, results)
            details = {"figures": results, "types": data["eval"].per_type(told)}
            text = json.dumps(details, indent=2, ensure_ascii=False) + "\n"
            write_text(Path(output_dir) / "eval_results.json", text)
    if DO_PREDICT.value:
        encoded = data["predict"]
        batch_size = PREDICT_BATCH_SIZE.value
        told = tuning.predictions(encoded.records, batch_size, "predict_batch_size", tag_and_probability)("Predicting")
        if is_chief(strategy):
            results |= write_answers(output_dir, step, encoded, told)
    return results


def write_answers(output_dir: str, step: int, encoded: EncodedTexts, told) -> dict[str, float]:
    """Writes predictions.conll and .jsonl, and test_results.txt where right tags are known; gives its figures."""
    entities = encoded.entities(told)
    write_text(Path(output_dir) / "predictions.conll", "".join(conll_lines(encoded.texts, entities)))
    rows = (json_object(text, found) for text, found in zip(encoded.texts, entities, strict=True))
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_text(Path(output_dir) / "predictions.jsonl", lines)
    if encoded.texts[0].entities is None:
        return {}
    figures = {name.replace("eval_", "test_"): value for name, value in encoded.figures(told).items()}
    write_results(output_dir, step, figures, name="test_results")
    return figures


if __name__ == "__main__":
    command_line.run(main)
