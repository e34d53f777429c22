"""The list of works: who does each, how large it is, and what it has to come to."""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.measuring import Compare, Turns, times_to_the_same_loss
from benchmarks.peers.shapes import released
from benchmarks.peers.texts import Inputs

PEERS_PYTHON = Path(".venv-peers/bin/python")
_ONE_THREAD = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclasses.dataclass(frozen=True)
class Way:
    """One way of doing a work."""

    name: str
    function: str  # module:function, see `Worker`
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    is_peer: bool = False  # whether it lives in the environment of the peers
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Goal:
    """What our side has to come to: beside the best of some others, or by itself."""

    title: str  # of what is compared
    at_least: float | None = None
    at_most: float | None = None
    against: tuple[Way, ...] = ()  # the best of them counts; with none, the figure is compared with the goal itself
    figure: str = "value"
    unit: str | None = None  # of the figure, where it is not that of the work
    compare: Compare | None = None  # what to divide by what, if not the figures themselves

    def __str__(self) -> str:
        return f"at least {self.at_least:g}" if self.at_least is not None else f"at most {self.at_most:g}"

    def is_reached(self, found: float) -> bool:
        return found >= self.at_least if self.at_least is not None else found <= self.at_most


@dataclasses.dataclass(frozen=True)
class Work:
    """Something to be done, by us and by others."""

    name: str
    title: str
    unit: str
    ours: tuple[Way, ...]  # the best of them counts, and is named
    goals: tuple[Goal, ...]
    turns: Turns
    lower_is_better: bool = False
    materials: Way | None = None  # what has to be made first; its function does that when it prepares


def training(name: str, batch_size: int, seq_length: int, quick: bool) -> Work:
    layers = 2 if quick else 12
    config = released(layers, 768)
    sizes = {"config": config, "batch_size": batch_size, "seq_length": seq_length, "predictions": 20}

    def ours(way: str, jit_compile: bool) -> Way:
        return Way(way, "ours_training:pretraining_step", sizes | {"jit_compile": jit_compile})

    def keras_hub(way: str, jit_compile: bool) -> Way:
        return Way(way, "keras_hub_training:pretraining_step", sizes | {"jit_compile": jit_compile})

    transformers = tuple(
        Way(f"transformers, {a}", "hugging_face_training:pretraining_step", sizes | {"attention": a}, is_peer=True)
        for a in ("sdpa", "eager")
    )
    return Work(
        name=name,
        title=f"training step, {layers} layers of 768, {batch_size} x {seq_length}",
        unit="sequences/s",
        ours=(ours("ours, XLA", True), ours("ours", False)),
        goals=(
            Goal("transformers", at_least=1.0, against=transformers[:1] if quick else transformers),
            Goal("KerasHub with XLA", at_least=1.15, against=(keras_hub("KerasHub, XLA", True),)),
            Goal("KerasHub without XLA", at_least=1.5, against=(keras_hub("KerasHub", False),)),
            Goal("a product of matrices, FLOP/s", at_least=0.9, figure="of_matmul", unit="of its FLOP/s"),
            Goal("transformers, peak memory", at_most=1.0, against=transformers[:1], figure="peak_mb", unit="MB"),
        ),
        turns=Turns(count=3 if quick else 1024 // seq_length, wanted=2 if quick else 3),
    )


def training_128(inputs: Inputs, quick: bool) -> Work:
    """a training step of BERT-base at 8 x 128: transformers, KerasHub, products of matrices, memory"""
    return training("training_128", 8, 128, quick)


def training_512(inputs: Inputs, quick: bool) -> Work:
    """the same at 4 x 512"""
    return training("training_512", 4, 512, quick)


def finetuning(inputs: Inputs, quick: bool) -> Work:
    """MRPC in three epochs from files to scores, as whole commands: transformers with dynamic padding"""
    epochs = 1 if quick else 3
    ours = [
        *(sys.executable, "run_classifier.py", "--task_name=MRPC", f"--data_dir={inputs.mrpc_dir}", "--do_train"),
        *("--do_eval", f"--init_checkpoint={inputs.minilm}", "--output_dir=OUTPUT_DIR", "--batching=bucketed"),
        *(f"--num_train_epochs={epochs}", "--seed=1", "--eval_batch_size=64", "--save_checkpoints_steps=100000"),
    ]
    theirs = [
        *(str(PEERS_PYTHON), "-m", "benchmarks.peers.hugging_face_finetuning"),
        *(inputs.mrpc_dir, inputs.minilm, "OUTPUT_DIR", str(epochs)),
    ]
    transformers = Way("transformers", "commands:whole", {"command": theirs})
    return Work(
        name="finetuning",
        title=f"fine-tuning on MRPC, MiniLM, {epochs} epoch(s), files to scores",
        unit="s",
        ours=(Way("ours", "commands:whole", {"command": ours}),),
        goals=(Goal("transformers", at_most=0.5, against=(transformers,)),),
        turns=Turns(count=1, wanted=1 if quick else 2, spare=2),
        lower_is_better=True,
    )


def _inference(name: str, inputs: Inputs, model: dict, size: str, num_lines: int, function: str, ours: str) -> Work:
    settings = {"lines_file": inputs.lines, "vocab_file": inputs.vocab_file, "max_seq_length": 128} | model
    transformers = Way("transformers", "hugging_face_inference:vectors", settings, is_peer=True)
    onnxruntime = Way("onnxruntime", "onnx_inference:vectors", settings, is_peer=True)
    return Work(
        name=name,
        title=f"vectors of {num_lines:,} lines, {size}, {ours}",
        unit="lines/s",
        ours=(Way(f"ours, {ours}", function, settings),),
        goals=(
            Goal("transformers", at_least=1.3, against=(transformers,)),
            Goal("onnxruntime", at_least=1.0, against=(onnxruntime,)),
        ),
        turns=Turns(count=num_lines, wanted=2),
    )


_KERAS = ("ours_inference:keras_vectors", "Keras")
_SAVED_MODEL = ("ours_inference:saved_model_vectors", "SavedModel")


def inference_minilm(inputs: Inputs, quick: bool) -> Work:
    """vectors of 10,000 lines by MiniLM in Keras: transformers, onnxruntime"""
    num_lines = 600 if quick else 10_000
    return _inference("inference_minilm", inputs, {"model": inputs.minilm}, "MiniLM", num_lines, *_KERAS)


def inference_minilm_saved(inputs: Inputs, quick: bool) -> Work:
    """the same as a SavedModel"""
    num_lines = 600 if quick else 10_000
    model = {"model": inputs.minilm}
    return _inference("inference_minilm_saved", inputs, model, "MiniLM", num_lines, *_SAVED_MODEL)


def inference_base(inputs: Inputs, quick: bool) -> Work:
    """vectors of 10,000 lines by BERT-base (random weights) in Keras: transformers, onnxruntime"""
    model = {"config": released(2 if quick else 12, 768)}
    return _inference("inference_base", inputs, model, "BERT-base", 200 if quick else 10_000, *_KERAS)


def inference_base_saved(inputs: Inputs, quick: bool) -> Work:
    """the same as a SavedModel"""
    model = {"config": released(2 if quick else 12, 768)}
    return _inference("inference_base_saved", inputs, model, "BERT-base", 200 if quick else 10_000, *_SAVED_MODEL)


def int8(inputs: Inputs, quick: bool) -> Work:
    """one sentence of 32 pieces on one thread, dynamic int8, MiniLM: our TFLite, and onnxruntime's quantized model"""
    settings = {"model": inputs.minilm, "length": 32}
    onnxruntime = Way("onnxruntime, dynamic int8", "onnx_inference:quantized_sentence", settings, is_peer=True)
    return Work(
        name="int8",
        title="one sentence of 32 pieces, one thread, int8, MiniLM",
        unit="sentences/s",
        ours=(Way("ours, TFLite dynamic int8", "ours_inference:lite_sentence", settings),),
        goals=(Goal("onnxruntime", at_least=1.0, against=(onnxruntime,)),),
        turns=Turns(count=100 if quick else 500, wanted=3 if quick else 5),
    )


def records(inputs: Inputs, quick: bool) -> Work:
    """pre-training records of one text, seconds of CPU: the original's way, with the same records"""
    settings = {"text": inputs.books[0], "vocab_file": inputs.vocab_file, "dupe_factor": 1 if quick else 5}
    return Work(
        name="records",
        title=f"create_pretraining_data of {Path(inputs.books[0]).name}, one core",
        unit="records/s of CPU",
        ours=(Way("ours", "ours_data:records", settings),),
        goals=(Goal("the original's way", at_least=5.0, against=(Way("plain", "ours_data:plain_records", settings),)),),
        turns=Turns(count=1, wanted=2),
    )


def tokenization(inputs: Inputs, quick: bool) -> Work:
    """pieces of a text, one thread, in Python or in the graph: Hugging Face tokenizers"""
    settings = {"text": inputs.books[0], "vocab_file": inputs.vocab_file}
    tokenizers = Way("tokenizers", "hugging_face_data:pieces", settings, is_peer=True, environment=_ONE_THREAD)
    return Work(
        name="tokenization",
        title=f"pieces of {Path(inputs.books[0]).name}, one thread",
        unit="MB/s",
        ours=(
            Way("ours, new tokenizer", "ours_data:pieces", settings),
            Way("ours, graph", "ours_data:pieces_in_graph", settings),
        ),
        goals=(Goal("Hugging Face tokenizers", at_least=1.0, against=(tokenizers,)),),
        turns=Turns(count=1),
    )


_TINY = released(2, 128)
_PRETRAINING = {"seq_length": 128, "predictions": 20, "batch_size": 32}


def _pretraining_materials(inputs: Inputs, num_steps: int) -> tuple[Way, str, list[str]]:
    """What makes records and arrays, where they go, and the records."""
    directory = str(inputs.directory / f"pretraining-{num_steps}")
    books = inputs.books[:4]
    settings = {
        "directory": directory,
        "config": _TINY,
        "books": books,
        "heldout": inputs.heldout,
        "vocab_file": inputs.vocab_file,
        "num_steps": num_steps,
    }
    files = [f"{directory}/books-{number:05d}-of-{len(books):05d}.tfrecord" for number in range(len(books))]
    return Way("materials", "ours_materials:pretraining", settings | _PRETRAINING), directory, files


def _fed(inputs: Inputs, quick: bool) -> tuple[Way, dict, tuple[Way, ...]]:
    """What makes records, what reads them, and the fastest model here, which trains on them."""
    materials, _, files = _pretraining_materials(inputs, 50 if quick else 600)
    settings = {"records": files} | _PRETRAINING
    ways = tuple(
        Way(name, "ours_training:fed_step", settings | {"config": _TINY, "jit_compile": jit_compile})
        for name, jit_compile in (("2 layers of 128, XLA", True), ("2 layers of 128", False))
    )
    return materials, settings, ways


def input_pipeline(inputs: Inputs, quick: bool) -> Work:
    """what reading records brings, beside what the fastest model here uses up"""
    materials, settings, fed = _fed(inputs, quick)
    return Work(
        name="input_pipeline",
        title="input of pre-training alone, 32 x 128",
        unit="sequences/s",
        ours=(Way("records to batches", "ours_training:input_pipeline", settings),),
        goals=(Goal("the fastest model here", at_least=5.0, against=fed),),
        turns=Turns(count=40 if quick else 200),
        materials=materials,
    )


def input_wait(inputs: Inputs, quick: bool) -> Work:
    """the share of its time that this model waits for its batches"""
    materials, _, fed = _fed(inputs, quick)
    return Work(
        name="input_wait",
        title="training on records, 2 layers of 128, 32 x 128",
        unit="sequences/s",
        ours=fed,
        goals=(Goal("share of time that steps wait", at_most=0.01, figure="wait_share", unit="of the time"),),
        turns=Turns(count=40 if quick else 200),
        materials=materials,
    )


def startup(inputs: Inputs, quick: bool) -> Work:
    """run_classifier.py --help, cold"""
    command = [sys.executable, "run_classifier.py", "--help"]
    return Work(
        name="startup",
        title="run_classifier.py --help",
        unit="s",
        ours=(Way("ours", "commands:whole", {"command": command}),),
        goals=(Goal("by itself", at_most=2.0),),
        turns=Turns(count=1),
        lower_is_better=True,
    )


def first_step(inputs: Inputs, quick: bool) -> Work:
    """the first training step of MRPC, cold"""
    command = [
        *(sys.executable, "run_classifier.py", "--task_name=MRPC", f"--data_dir={inputs.mrpc_dir}", "--do_train"),
        *(f"--init_checkpoint={inputs.minilm}", "--output_dir=OUTPUT_DIR", "--log_every_steps=1", "--seed=1"),
    ]
    return Work(
        name="first_step",
        title="first training step of MRPC, MiniLM, cold",
        unit="s",
        ours=(Way("ours", "commands:first_step", {"command": command}),),
        goals=(Goal("by itself", at_most=30.0),),
        turns=Turns(count=1, wanted=1 if quick else 3),
        lower_is_better=True,
    )


def builder_memory(inputs: Inputs, quick: bool) -> Work:
    """peak memory of create_pretraining_data.py, as the corpus grows thirty times"""

    def built(name: str, texts: list[str]) -> Way:
        command = [
            *(sys.executable, "create_pretraining_data.py", f"--input_file={','.join(texts)}", "--dupe_factor=1"),
            *(f"--vocab_file={inputs.vocab_file}", "--output_file=OUTPUT_DIR/out.tfrecord", "--shard_by_file"),
        ]
        megabytes = sum(Path(text).stat().st_size for text in texts) / 1e6
        return Way(f"{name}, {megabytes:.3g} MB", "commands:peak_memory", {"command": command})

    # The largest by itself: the peak is that of a text, and texts are not all of one size.
    largest = max(inputs.books, key=lambda text: Path(text).stat().st_size)
    one, all_of_them = built("one text", [largest]), built("all texts", inputs.books)
    return Work(
        name="builder_memory",
        title="create_pretraining_data.py --shard_by_file, peak memory",
        unit="MB",
        ours=(all_of_them,),
        goals=(Goal("the same of one text", at_most=1.1, against=(one,)),),
        turns=Turns(count=1, wanted=1, is_timed=False),
        lower_is_better=True,
    )


def pretraining(inputs: Inputs, quick: bool) -> Work:
    """held-out loss against time, 2 layers of 128, the same records and first weights: transformers"""
    num_steps, every = (50, 25) if quick else (600, 50)
    materials, directory, files = _pretraining_materials(inputs, num_steps)
    shared = {"start": f"{directory}/start", "batch_size": 32, "learning_rate": 1e-3, "evaluate_every": every}
    of_ours = shared | {"config": _TINY, "records": files, "heldout": f"{directory}/heldout.tfrecord"} | _PRETRAINING
    of_theirs = shared | {"batches": f"{directory}/batches.npz", "heldout": f"{directory}/heldout.npz"}
    transformers = tuple(
        Way(f"transformers, {a}", "hugging_face_training:pretraining_run", of_theirs | {"attention": a}, is_peer=True)
        for a in (("sdpa",) if quick else ("sdpa", "eager"))
    )
    return Work(
        name="pretraining",
        title=f"pre-training, 2 layers of 128, {num_steps} steps of 32 x 128, to the same held-out loss",
        unit="s",
        ours=tuple(
            Way(name, "ours_training:pretraining_run", of_ours | {"jit_compile": jit_compile})
            for name, jit_compile in (("ours, XLA", True), ("ours", False))
        ),
        goals=(Goal("transformers", at_most=0.7, against=transformers, compare=times_to_the_same_loss),),
        turns=Turns(count=num_steps, wanted=1, spare=2),
        lower_is_better=True,
        materials=materials,
    )


_ALL: tuple[Callable[[Inputs, bool], Work], ...] = (
    training_128,
    training_512,
    finetuning,
    inference_minilm,
    inference_minilm_saved,
    inference_base,
    inference_base_saved,
    int8,
    records,
    tokenization,
    input_pipeline,
    input_wait,
    startup,
    first_step,
    builder_memory,
    pretraining,
)
WORKS = {function.__name__: function for function in _ALL}

# What takes seconds, on small models: enough to see that all of it runs, and roughly where one stands.
QUICK = (
    *("training_128", "inference_minilm", "int8", "records", "tokenization"),
    *("input_pipeline", "input_wait", "startup", "first_step"),
)


def described() -> str:
    """The works, a line each."""
    return "\n".join(f"    {name:24}{function.__doc__}" for name, function in WORKS.items())
