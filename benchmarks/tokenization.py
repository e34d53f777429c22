"""Speed of tokenizers on one thread, side by side on the same lines: ours in Python and in the graph, and the peers.

    python -m benchmarks.tokenization --text=books/train-000.txt --vocab_file=vocab.txt

Rounds alternate between the tokenizers, and the best round of each counts. "first" is a tokenizer that has seen no text
yet; "warm" is one that has seen this text.
"""

import os
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from absl import flags

import command_line

_TEXT = flags.DEFINE_string("text", None, "A text, one sentence a line.", required=True)
_VOCAB_FILE = flags.DEFINE_string("vocab_file", None, "An uncased vocabulary.", required=True)
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Rounds; the best of each tokenizer counts.")


def main() -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    import tensorflow_text
    import tokenizers

    from data.graph_tokenization import GraphTokenizer
    from data.tokenization import FullTokenizer

    with open(_TEXT.value, encoding="utf-8", newline="\n") as file:
        lines = [line.strip() for line in file]
    megabytes = sum(len(line.encode()) for line in lines) / 1e6
    batches = [tf.constant(lines[i : i + 1024]) for i in range(0, len(lines), 1024)]

    warm = FullTokenizer(_VOCAB_FILE.value)
    hugging_face = tokenizers.BertWordPieceTokenizer(_VOCAB_FILE.value, lowercase=True)
    graph = GraphTokenizer(warm)
    fast_bert = tensorflow_text.FastBertTokenizer(
        [token for token, _ in sorted(warm.vocab.items(), key=lambda item: item[1])],
        token_out_type=tf.int32,
        lower_case_nfd_strip_accents=True,
    )
    bert = tensorflow_text.BertTokenizer(_VOCAB_FILE.value, token_out_type=tf.int32, lower_case=True)

    def in_graph(tokenize):
        compiled = tf.function(
            lambda texts: tokenize(texts), autograph=False, input_signature=[tf.TensorSpec([None], tf.string)]
        )
        return lambda: sum(int(tf.size(compiled(batch).flat_values)) for batch in batches)

    def ours(tokenizer):
        return sum(len(tokenizer.tokenize_to_ids(line)) for line in lines)

    ways = {
        "ours, Python, first": lambda: ours(FullTokenizer(_VOCAB_FILE.value)),
        "ours, Python, warm": lambda: ours(warm),
        "Hugging Face tokenizers": lambda: sum(
            len(encoding.ids) for encoding in hugging_face.encode_batch(lines, add_special_tokens=False)
        ),
        "ours, graph": in_graph(graph.tokenize),
        "tensorflow-text FastBertTokenizer": in_graph(fast_bert.tokenize),
        "tensorflow-text BertTokenizer": in_graph(bert.tokenize),
    }
    best, counts = {}, {}
    for _ in range(_ROUNDS.value):
        for name, run in ways.items():
            start = time.perf_counter()
            counts[name] = run()
            best[name] = min(best.get(name, 1e9), time.perf_counter() - start)
    slowest = max(best.values())
    for name, seconds in best.items():
        print(f"{name:>34}: {megabytes / seconds:6.2f} MB/s ({slowest / seconds:4.1f}x), {counts[name]} pieces")


if __name__ == "__main__":
    command_line.run(main)
