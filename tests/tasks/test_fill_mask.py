"""A model that knows two facts."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

from data.tokenization import FullTokenizer
from modeling.checkpoint import save_checkpoint
from modeling.config import BertConfig
from modeling.models import PretrainingModel
from tasks.fill_mask import FillMask
from tasks.pretraining import PretrainingTask
from training.optimizer import AdamWeightDecay
from training.step import TrainStep

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "sky", "grass", "is", "blue", "green", "."]


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """A directory with a tiny model that was taught the colours of two things, in seconds."""
    directory = tmp_path_factory.mktemp("colours")
    (directory / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCAB))
    config = BertConfig(
        vocab_size=len(VOCAB),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        type_vocab_size=2,
        initializer_range=0.2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    (directory / "bert_config.json").write_text(config.to_json_string())
    tokenizer = FullTokenizer(vocab_file=directory / "vocab.txt", never_split=("[MASK]",))
    texts = ["[CLS] the sky is [MASK] . [SEP]", "[CLS] the grass is [MASK] . [SEP]"]
    ids = np.array([tokenizer.convert_tokens_to_ids(text.split()) for text in texts], np.int32)
    batch = {
        "input_ids": ids,
        "masked_lm_positions": np.int32([[4], [4]]),
        "masked_lm_ids": np.int32([[VOCAB.index("blue")], [VOCAB.index("green")]]),
        "masked_lm_weights": np.ones((2, 1), np.float32),
    }
    strategy = tf.distribute.get_strategy()
    model = PretrainingModel(config, seed=1)
    optimizer = AdamWeightDecay(1e-2)
    optimizer.build(model.trainable_variables)
    step = TrainStep(strategy, model, PretrainingTask(use_next_sentence=False), optimizer, seed=1)
    step.run(iter(tf.data.Dataset.from_tensors(batch).repeat()), tf.constant(100))
    save_checkpoint(model, directory / "bert_model.ckpt")
    return directory


def test_it_knows_what_it_was_taught(taught):
    fill_mask = FillMask.load(taught)
    sky, grass = fill_mask(["The sky is [MASK].", "The grass is [MASK]."], top_k=2)
    assert (sky[0][0].token, grass[0][0].token) == ("blue", "green")
    assert sky[0][0].probability > 0.9
    assert sky[0][0].probability > sky[0][1].probability


def test_several_masks_pairs_and_lengths_in_one_batch(taught):
    fill_mask = FillMask.load(taught)
    texts = ["The [MASK] is [MASK].", "The sky is [MASK].", ("the sky", "is [MASK] .")]
    together = fill_mask(texts, top_k=len(VOCAB) + 5)
    assert [len(masks) for masks in together] == [2, 1, 1]
    assert sum(candidate.probability for candidate in together[0][1]) == pytest.approx(1.0, abs=1e-5)
    for text, masks in zip(texts, together, strict=True):
        [alone] = fill_mask([text], top_k=3)
        for candidates, others in zip(alone, masks, strict=True):
            assert [c.token for c in candidates] == [c.token for c in others[:3]]
            np.testing.assert_allclose([c.probability for c in candidates], [c.probability for c in others[:3]], 1e-4)


def test_what_cannot_be_filled_is_refused(taught, tmp_path):
    fill_mask = FillMask.load(taught)
    with pytest.raises(ValueError, match=r"no \[MASK\] in 'The sky.'"):
        fill_mask(["The sky."])
    with pytest.raises(ValueError, match="has 22 pieces, but the model takes 16"):
        fill_mask(["sky " * 19 + "[MASK]"])
    encoder = PretrainingModel(FillMask.load(taught)._model.config).encoder
    save_checkpoint(encoder, tmp_path / "bert_model.ckpt")
    for name in ("bert_config.json", "vocab.txt"):
        shutil.copy(taught / name, tmp_path)
    with pytest.raises(ValueError, match="no masked LM head"):
        FillMask.load(tmp_path)


def test_scores_tell_what_was_taught_from_what_was_not(taught):
    fill_mask = FillMask.load(taught)
    right, wrong = fill_mask.score(["the sky is blue .", "the sky is green ."], batch_size=2)
    assert right.num_pieces == 5 and right.follows is None
    assert right.pseudo_perplexity < wrong.pseudo_perplexity
    # By hand: each piece hidden in turn.
    ids = [2, 5, 6, 8, 9, 11, 3]
    losses = []
    for place in range(1, 6):
        hidden = ids[:place] + [4] + ids[place + 1 :]
        batch = {"input_ids": np.int32([hidden]), "masked_lm_positions": np.int32([[place]])}
        logits = fill_mask._model(batch)["masked_lm_logits"][0, 0]
        losses.append(-tf.nn.log_softmax(logits)[ids[place]].numpy())
    assert right.pseudo_perplexity == pytest.approx(np.exp(np.mean(losses)), rel=1e-4)
    [pair] = fill_mask.score([("the sky is blue .", "the grass is green .")])
    assert pair.num_pieces == 10 and 0.0 < pair.follows < 1.0
    with pytest.raises(ValueError, match="nothing to score"):
        fill_mask.score([""])
