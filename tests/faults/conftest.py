"""Small runs of the real scripts for accidents to happen to."""

import json
import random
import subprocess

import pytest

from tests.scripts import write_tiny_model
from tests.warm import warm as shared_warm

SEA, LAND = ["ship", "wave", "sail", "harbour", "tide"], ["field", "horse", "barn", "plough", "hill"]


@pytest.fixture(scope="session")
def warm():
    return shared_warm()


@pytest.fixture(scope="session")
def config_file(tmp_path_factory):
    """Of a BERT for the golden records."""
    path = tmp_path_factory.mktemp("config") / "config.json"
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    path.write_text(json.dumps(sizes | {"vocab_size": 700, "max_position_embeddings": 128, "type_vocab_size": 2}))
    return path


@pytest.fixture
def flags(golden, config_file, tmp_path):
    """Pre-training on 104 records of the original."""
    return {
        "input_file": golden / "pretraining_plain.tfrecord",
        "bert_config_file": config_file,
        "output_dir": tmp_path / "out",
        "do_train": True,
        "train_batch_size": 8,
        "num_train_steps": 12,
        "num_warmup_steps": 2,
        "learning_rate": 1e-2,
        "log_every_steps": 1,
        "save_checkpoints_steps": 3,
        "seed": 1,
        "deterministic": True,
    }


@pytest.fixture(scope="session")
def table(tmp_path_factory):
    """Writes a table of sentences, each about the sea or not, and gives its path."""
    directory = tmp_path_factory.mktemp("tables")

    def write(count, seed=0):
        rng = random.Random(seed)
        path = directory / f"{count}-{seed}.jsonl"
        with open(path, "w", encoding="utf-8") as file:
            for _ in range(count):
                label = rng.choice(["sea", "land"])
                words = [rng.choice(["the", "old", "a"]) for _ in range(rng.randrange(1, 8))]
                words.insert(rng.randrange(len(words) + 1), rng.choice(SEA if label == "sea" else LAND))
                file.write(json.dumps({"text": " ".join(words), "label": label}) + "\n")
        return path

    return write


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    return write_tiny_model(
        tmp_path_factory.mktemp("model"), [*SEA, *LAND, "the", "old", "a"], hidden_size=16, num_hidden_layers=1
    )


@pytest.fixture
def tuning_flags(tiny_model, table, tmp_path):
    """Fine-tuning on 80 sentences."""
    return {
        "task_name": "custom",
        "train_file": table(80),
        "eval_file": table(20, seed=1),
        "output_dir": tmp_path / "tuned",
        "bert_config_file": tiny_model / "config.json",
        "vocab_file": tiny_model / "vocab.txt",
        "max_seq_length": 16,
        "train_batch_size": 8,
        "learning_rate": 1e-3,
        "seed": 1,
        "deterministic": True,
    }


@pytest.fixture
def disk(tmp_path):
    """Mounts a disk of its own in memory, of so many kB; only root may."""
    mounted = []

    def mount(kilobytes):
        place = tmp_path / f"disk-{len(mounted)}"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting a disk needs root")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
