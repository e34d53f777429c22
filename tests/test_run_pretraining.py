"""The script itself, as a person runs it, and as an accident leaves it."""

import json
import socket

import numpy as np
import pytest
import tensorflow as tf

from modeling.google import read_variables
from tests.scripts import SLOW_STEPS, complaints, finish, last_step, run, spell, start, wait_for
from training.reports import read_metrics

SCRIPT = "run_pretraining.py"


def write_config(path, **changes):
    values = {
        "vocab_size": 700,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 128,
        "type_vocab_size": 2,
    }
    path.write_text(json.dumps(values | changes))
    return path


@pytest.fixture
def flags(golden, tmp_path):
    """A small run on 104 records of the original."""
    return {
        "input_file": golden / "pretraining_plain.tfrecord",
        "bert_config_file": write_config(tmp_path / "config.json"),
        "output_dir": tmp_path / "out",
        "do_train": True,
        "train_batch_size": 8,
        "num_train_steps": 12,
        "num_warmup_steps": 2,
        "learning_rate": 1e-2,
        "log_every_steps": 1,
        "save_checkpoints_steps": 3,
        "seed": 1,
    }


def losses(output_dir):
    return np.array([line["loss"] for line in read_metrics(output_dir, "train")])


def test_twenty_steps_of_the_original(golden, golden_batch, tmp_path):
    """A file of that one batch, the original's weights and flags: its losses, and its weights in the end."""
    expected = np.load(golden / "model" / "training.npz")
    batch_size, length = golden_batch["input_ids"].shape
    records = tmp_path / "batch.tfrecord"
    with tf.io.TFRecordWriter(str(records)) as writer:
        for row in range(batch_size):
            features = {}
            for name, array in golden_batch.items():
                values = np.ravel(array[row])
                kind = {"float_list": tf.train.FloatList(value=values)} if array.dtype.kind == "f" else None
                kind = kind or {"int64_list": tf.train.Int64List(value=values)}
                features[name] = tf.train.Feature(**kind)
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    said = run(
        SCRIPT,
        *spell(
            input_file=records,
            bert_config_file=golden / "model" / "bert_config.json",
            init_checkpoint=golden / "model" / "bert_model.ckpt",
            output_dir=tmp_path / "out",
            max_seq_length=length,
            max_predictions_per_seq=golden_batch["masked_lm_ids"].shape[1],
            do_train=True,
            do_eval=True,
            train_batch_size=batch_size,
            eval_batch_size=batch_size,
            learning_rate=float(expected["learning_rate"]),
            num_train_steps=int(expected["num_train_steps"]),
            num_warmup_steps=int(expected["num_warmup_steps"]),
            log_every_steps=1,
        ),
    )
    assert "Loaded" in said
    lines = read_metrics(tmp_path / "out", "train")
    found = np.array([[line[name] for name in ("loss", "masked_lm_loss", "next_sentence_loss")] for line in lines])
    np.testing.assert_allclose(found, expected["losses"], rtol=1e-4)
    np.testing.assert_allclose([line["learning_rate"] for line in lines], expected["learning_rates"], rtol=1e-6)
    after = read_variables(golden / "model" / "after_training.ckpt")
    for name, value in read_variables(tmp_path / "out" / "bert_model.ckpt").items():
        np.testing.assert_allclose(value, after[name], rtol=0, atol=1e-3, err_msg=name)
    results = (tmp_path / "out" / "eval_results.txt").read_text().splitlines()
    assert [line.split(" = ")[0] for line in results] == [
        "global_step",
        "loss",
        "masked_lm_accuracy",
        "masked_lm_loss",
        "next_sentence_accuracy",
        "next_sentence_loss",
    ]
    assert results[0] == "global_step = 20"


@pytest.mark.slow
def test_replicas_and_parts_of_a_batch_do_not_change_the_losses(flags, tmp_path):
    """Rows differ in their number of masked words, so shares do too. Without dropout, which replicas draw apart."""
    config = write_config(tmp_path / "config.json", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    flags |= {"bert_config_file": config, "num_train_steps": 20, "save_checkpoints_steps": 20}
    ways = {
        "one": {},
        "parts": {"gradient_accumulation_steps": 2},
        "replicas": {"distribution_strategy": "mirrored", "virtual_devices": 2},
        "both": {
            "distribution_strategy": "mirrored",
            "virtual_devices": 2,
            "gradient_accumulation_steps": 2,
            "jit_compile": True,
            "iterations_per_loop": 5,
            "log_every_steps": 5,
        },
    }
    for name, more in ways.items():
        run(SCRIPT, *spell(**flags | more | {"output_dir": tmp_path / name}))
    expected = losses(tmp_path / "one")
    assert expected[-1] < expected[0] - 0.3
    for name in ("parts", "replicas"):
        np.testing.assert_allclose(losses(tmp_path / name), expected, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(losses(tmp_path / "both"), expected.reshape(4, 5).mean(axis=1), rtol=1e-5)
    weights = read_variables(tmp_path / "one" / "bert_model.ckpt")
    for name, value in read_variables(tmp_path / "replicas" / "bert_model.ckpt").items():
        np.testing.assert_allclose(value, weights[name], rtol=0, atol=1e-4, err_msg=name)


def start_workers(flags, ports, **options):
    """Two processes on this machine that train together."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    return [
        start(
            SCRIPT,
            *spell(**flags, distribution_strategy="multi_worker"),
            TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}),
            **options,
        )
        for index in range(2)
    ]


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.mark.slow
def test_two_workers_agree_with_one_and_go_on_after_one_was_killed(flags, tmp_path):
    config = write_config(tmp_path / "config.json", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    flags |= {"bert_config_file": config, "do_eval": True, "eval_batch_size": 8, "gradient_accumulation_steps": 2}
    run(SCRIPT, *spell(**flags | {"output_dir": tmp_path / "one"}))

    workers = start_workers(flags, free_ports(2), before=SLOW_STEPS)
    wait_for(lambda: last_step(tmp_path / "out") >= 5, workers[0])
    workers[1].kill()
    workers[1].communicate()
    assert "Another worker went away" in finish(workers[0], code=75)

    for said in [finish(worker) for worker in start_workers(flags, free_ports(2))]:
        assert "from step 3" in said
    np.testing.assert_allclose(losses(tmp_path / "out"), losses(tmp_path / "one"), rtol=1e-5)
    one, two = ((tmp_path / name / "eval_results.txt").read_text().split() for name in ("one", "out"))
    np.testing.assert_allclose(*([float(v) for v in r if v[0].isdigit()] for r in (one, two)), rtol=1e-4)


def test_two_phases_left_to_right_dynamic_masks_and_evaluation_alone(flags, golden, tmp_path):
    """What has no accident in it, in as few processes as will do."""
    run(SCRIPT, *spell(**flags | {"num_train_steps": 3}, use_next_sentence=False))
    records = tmp_path / "dynamic.tfrecord"
    run(
        "create_pretraining_data.py",
        *spell(input_file=golden / "sample_text.txt", vocab_file=golden / "vocab.txt", output_file=records),
        *spell(masking="dynamic", max_seq_length=64),
    )
    second = flags | {"output_dir": tmp_path / "second", "input_file": records, "num_train_steps": 3}
    phase = spell(**second, vocab_file=golden / "vocab.txt", init_checkpoint=tmp_path / "out", max_seq_length=64)
    said = run(SCRIPT, *phase, *spell(do_eval=True, eval_every_steps=2, max_eval_steps=2, dtype="mixed_bfloat16"))
    assert "Missing there" not in said
    assert [line["step"] for line in read_metrics(tmp_path / "second", "eval")] == [2, 3]
    assert (tmp_path / "second" / "vocab.txt").read_bytes() == (golden / "vocab.txt").read_bytes()

    alone = second | {"do_train": False, "do_eval": True, "train_batch_size": None}
    said = run(SCRIPT, *spell(**alone, vocab_file=golden / "vocab.txt", max_seq_length=64, max_eval_steps=2))
    assert "Weights of step 3" in said
    results = dict(line.split(" = ") for line in said.split("Eval results *****")[1].split("\n  ")[1:])
    np.testing.assert_allclose(
        float(results["loss"]), read_metrics(tmp_path / "second", "eval")[-1]["loss"], rtol=1e-2
    )  # trained in bfloat16, evaluated in float32

    causal = spell(**flags | {"output_dir": tmp_path / "causal", "num_train_steps": 3}, attention="causal")
    assert "--use_next_sentence=false" in run(SCRIPT, *causal, code=1)
    run(SCRIPT, *causal, "--use_next_sentence=false", "--optimizer=lamb", "--iterations_per_loop=3")
    assert json.loads((tmp_path / "causal" / "bert_config.json").read_text())["attention"] == "causal"


MISTAKES = [
    ({"do_train": None}, "At least one of --do_train and --do_eval must be set"),
    ({"max_seq_length": 256}, "max_position_embeddings in"),
    ({"max_seq_length": 64}, "made with --max_seq_length=128, but --max_seq_length is 64"),
    ({"input_file": "/nowhere/*.tfrecord"}, "--input_file"),
    ({"gradient_accumulation_steps": 3}, "use a multiple of 3"),
    ({"init_checkpoint": "/nowhere/bert_model.ckpt"}, "There is no checkpoint /nowhere/bert_model.ckpt"),
    ({"deterministic": True, "seed": None}, "--deterministic needs a --seed"),
    ({"use_tpu": True, "distribution_strategy": "mirrored"}, "contradict"),
    ({"keep_best_metric": "loss"}, "set --eval_every_steps"),
    ({"early_stopping_patience": 2}, "set --keep_best_metric"),
]


@pytest.mark.slow
def test_mistakes_are_told_in_one_message(flags, tmp_path):
    small = write_config(tmp_path / "small.json", vocab_size=300)
    mistakes = [*MISTAKES, ({"bert_config_file": small}, "vocab_size in --bert_config_file is 300")]
    told = complaints(SCRIPT, *(spell(**flags | changes) for changes, _ in mistakes))
    for (_, wanted), said in zip(mistakes, told, strict=True):
        assert wanted in said
    said = run(SCRIPT, *spell(**flags | MISTAKES[0][0]), code=1)
    assert MISTAKES[0][1] in said and "Traceback" not in said
