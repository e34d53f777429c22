"""What a person is told when a script fails, whatever the script."""

import pytest

from tests import scripts

# Real accidents: more bytes than any machine can address. The others are raised as TensorFlow raises them. It tries for
# ten seconds to get a tensor, so that only one test asks for one.
_ACCIDENTS = """
    import importlib, json, sys
    import command_line
    import tensorflow as tf

    script, *asked = sys.argv[1].split()
    importlib.import_module(script)  # defines its flags

    def raised(error):
        raise error

    accidents = {
        "tensor": lambda: tf.zeros([2**20, 2**40]),
        "bytes": lambda: bytes(2**62),
        "python_in_graph": lambda: tf.py_function(lambda: bytes(2**62), [], tf.string),
        "copy": lambda: raised(tf.errors.InternalError(None, None, "Failed copying: Dst tensor is not initialized.")),
        "disk": lambda: raised(tf.errors.ResourceExhaustedError(None, None, "out/x; No space left on device")),
        "internal": lambda: raised(tf.errors.InternalError(None, None, "Something else.")),
    }
    told = {}
    for name in asked or accidents:
        try:
            accidents[name]()
        except Exception as error:
            told[name] = command_line._message(error)
    print("\\n" + json.dumps(told))
"""

FIXES = (
    "--train_batch_size",
    "--gradient_accumulation_steps",
    "--recompute_activations",
    "--max_seq_length",
    "--dtype=mixed_bfloat16",
    "docs/memory.md",
)


@pytest.mark.slow
def test_a_script_that_trains_names_what_needs_less_memory():
    told = scripts.answer_of(_ACCIDENTS, "run_pretraining")
    for name in ("tensor", "bytes", "python_in_graph", "copy"):
        assert told[name].startswith("Out of memory"), name
        assert [fix for fix in FIXES if fix not in told[name]] == [], name
    assert "[1048576,1099511627776]" in told["tensor"] and "--predict_batch_size" not in told["tensor"]
    assert told["disk"].startswith("The disk of ")
    assert "(out/x; No space left on device)" in told["disk"]
    assert told["internal"] == "Something else."


@pytest.mark.slow
def test_a_script_that_also_evaluates_and_predicts_names_what_counts_then():
    told = scripts.answer_of(_ACCIDENTS, "run_ner bytes")["bytes"]
    assert [fix for fix in (*FIXES, "--eval_batch_size", "--predict_batch_size") if fix not in told] == []


@pytest.mark.slow
def test_a_script_names_only_flags_that_it_has():
    page = "docs/memory.md tells what takes how much, and what fits."
    assert scripts.answer_of(_ACCIDENTS, "run_fill_mask bytes")["bytes"] == f"Out of memory. Lower --batch_size. {page}"
    assert scripts.answer_of(_ACCIDENTS, "learn_vocab bytes")["bytes"] == f"Out of memory. {page}"


@pytest.mark.slow
def test_a_script_without_memory_ends_with_the_message_and_no_traceback():
    before = """
        from modeling.config import BertConfig
        BertConfig.from_json_file = lambda path: bytes(2**62)
    """
    required = scripts.spell(bert_config_file="x", input_file="x", output_dir="x", do_train=True)
    told = scripts.run("run_pretraining.py", *required, before=before, code=1)
    assert "run_pretraining.py: Out of memory. Lower --train_batch_size" in told
    assert "Traceback" not in told
