"""What both sides of pre-training start from: records, the same rows as arrays, and the same first weights."""

from pathlib import Path

import numpy as np

from benchmarks.peers.ours_training import open_records
from data.pretraining import InstanceOptions
from data.shards import Job, jobs_by_file, run_jobs
from data.tokenization import load_vocab
from modeling import hugging_face
from modeling.config import BertConfig
from modeling.models import PretrainingModel


def pretraining(
    directory: str,
    config: dict,
    books: list[str],
    heldout: str,
    vocab_file: str,
    seq_length: int,
    predictions: int,
    batch_size: int,
    num_steps: int,
):
    """Makes records of books and of the held-out text, `batches.npz`, `heldout.npz` and the model `start`."""
    place = Path(directory)
    place.mkdir(parents=True, exist_ok=True)
    options = InstanceOptions(max_seq_length=seq_length, max_predictions_per_seq=predictions, dupe_factor=1)
    job = Job(tuple(books), (), 12345, vocab_file, True, options, overwrite=True)
    jobs = jobs_by_file(job, str(place / "books.tfrecord"))
    of_heldout = Job((heldout,), (str(place / "heldout.tfrecord"),), 12345, vocab_file, True, options, overwrite=True)
    run_jobs([*jobs, of_heldout])

    records = open_records([job.outputs[0] for job in jobs], seq_length, predictions)
    batches = records.training_batches(batch_size, 1, 0, 0, 1).take(num_steps)
    _save(place / "batches.npz", batches.as_numpy_iterator())
    evaluated = open_records(list(of_heldout.outputs), seq_length, predictions)
    num_batches = min(20, evaluated.num_evaluation_batches(batch_size))
    _save(place / "heldout.npz", evaluated.evaluation_batches(batch_size, 0, 1).take(num_batches).as_numpy_iterator())

    model, vocab = PretrainingModel(BertConfig.from_dict(config), seed=1), load_vocab(vocab_file)
    weights = {variable.path: variable.numpy() for variable in model.weights}
    hugging_face.write(weights, model.config, place / "start", list(vocab), do_lower_case=True)
    return lambda count: {"value": 0.0}


def _save(path: Path, batches) -> None:
    batches = list(batches)
    names = [name for name in batches[0] if name != "row_weights"]
    np.savez(path, **{name: np.concatenate([batch[name] for batch in batches]) for name in names})
