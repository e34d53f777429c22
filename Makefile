# Every target sets itself up: a machine needs Python 3.11, make, and a way to PyPI.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
RUN := $(BIN)/python
# What the classifiers of quickstart have in common.
PACKAGES := --task_name=custom --data_dir=quickstart/packages --do_train --do_eval --num_train_epochs=4 \
  --learning_rate=3e-4 --bias_correction --seed=1 --batching=bucketed --eval_batch_size=64 --train_batch_size=32

export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: quickstart test lint format bench lock audit clean

# Every file that a package index offers for a version has its hash here, whatever the platform; and nothing else of it.
COMPILE := .venv-tools/bin/uv pip compile --quiet --generate-hashes --no-annotate --no-header --no-emit-index-url \
  --no-emit-find-links --python-version 3.11 --python-platform x86_64-manylinux_2_28
INSTALL := -m pip install --quiet --disable-pip-version-check --require-hashes

quickstart: .venv/.installed  ## the whole way, from text to a model for a server and a phone
	@echo "1. A corpus: the documentation inside the installed Python packages."
	$(RUN) -m examples.python_docs --output_dir=quickstart/corpus --table_dir=quickstart/packages
	@echo "2. A vocabulary of 4,000 pieces, learned from it: look into quickstart/vocab.txt."
	$(RUN) learn_vocab.py --input_file='quickstart/corpus/*.txt' --output_file=quickstart/vocab.txt --vocab_size=4000
	@echo "3. Pairs of sentences with masked words, as TFRecords. Run again, it keeps the files that are whole."
	$(RUN) create_pretraining_data.py --input_file='quickstart/corpus/*.txt' --vocab_file=quickstart/vocab.txt \
	  --output_file=quickstart/records/docs.tfrecord --max_seq_length=32 --max_predictions_per_seq=5 \
	  --dupe_factor=2 --do_whole_word_mask --shard_by_file --num_workers=2
	@echo "4. Pre-training of a tiny BERT, without dropout: it sees each sentence a few times only. mlm_loss starts near"
	@echo "   log(4000) = 8.3, stays near 6 as long as only frequencies are learned, and falls again once words are told from"
	@echo "   their neighbours. Stop it with Ctrl-C if you like: the same command goes on where it stopped."
	$(RUN) run_pretraining.py --input_file='quickstart/records/*.tfrecord' --vocab_file=quickstart/vocab.txt \
	  --bert_config_file=examples/quickstart_config.json --output_dir=quickstart/model --max_seq_length=32 \
	  --max_predictions_per_seq=5 --do_train --do_eval --train_batch_size=32 --num_train_steps=5000 --num_warmup_steps=500 \
	  --learning_rate=1e-3 --continuous_schedule --seed=1 --log_every_steps=100
	@echo "5. What it would fill in; and what a model does that has read novels for some hours (pretrained/bert-mini-books):"
	$(RUN) run_fill_mask.py --init_checkpoint=quickstart/model --text='Returns the [MASK] of the array.' \
	  --text='If [MASK], the default value is used.'
	$(RUN) run_fill_mask.py --text='He looked at her [MASK] said nothing.' --text='They had been there for a long [MASK].'
	@echo "6. Fine-tuning: which of six packages is a sentence from? The same classifier, from the model of step 4, from random"
	@echo "   weights, and from the model of novels. By chance, eval_accuracy would be 0.17. What was read before is worth"
	@echo "   more the nearer it is: this documentation for three minutes, or novels for six hours."
	$(RUN) run_classifier.py $(PACKAGES) --init_checkpoint=quickstart/model --output_dir=quickstart/classifier
	$(RUN) run_classifier.py $(PACKAGES) --bert_config_file=examples/quickstart_config.json --vocab_file=quickstart/vocab.txt \
	  --output_dir=quickstart/from_random
	$(RUN) run_classifier.py $(PACKAGES) --init_checkpoint=pretrained/bert-mini-books --output_dir=quickstart/from_books
	@grep eval_accuracy quickstart/classifier/eval_results.txt quickstart/from_*/eval_results.txt
	@echo "Compute the sum of the elements along an axis of the array." | \
	  $(RUN) run_classifier.py --output_dir=quickstart/classifier --do_predict --predict_file=-
	@echo "7. Export: a SavedModel for TensorFlow Serving, text in and answers out, asked here by TensorFlow alone; and TFLite."
	$(RUN) export_model.py --model_dir=quickstart/classifier --output_dir=quickstart/export
	$(RUN) examples/ask_saved_model.py quickstart/export/classifier 'Return a graph of the layers of the model.'
	$(RUN) export_model.py --model_dir=quickstart/classifier --output_dir=quickstart/phone --format=tflite
	$(RUN) -m examples.ask_tflite quickstart/phone/classifier/model_dynamic_int8.tflite \
	  'Return a graph of the layers of the model.'
	@echo "Done. All of it lies in quickstart/:"
	@echo "  corpus/, packages/, vocab.txt, records/   the data"
	@echo "  model/                                    the pre-trained model: bert_model.ckpt in Google's format, its config"
	@echo "  classifier/, from_random/, from_books/    the classifiers, each with eval_results.txt and a picture of its errors"
	@echo "  export/, phone/                           what a server and what a phone loads"
	@echo "Curves: $(BIN)/tensorboard --logdir quickstart, then open http://localhost:6006"

test: .venv/.dev-installed  ## all tests; `make test ARGS="-m 'not slow'"` leaves out the slow ones
	@# Files side by side, since most of a test is one core tracing a graph, and one more than there are cores, since some
	@# wait; the tests of a file share what they made.
	$(BIN)/python -m pytest --numprocesses=$$($(BIN)/python -c 'import os; print(min(4, os.cpu_count() + 1))') \
	  --dist=loadfile --no-loadscope-reorder $(ARGS)

lint: .venv/.dev-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: .venv/.dev-installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.dev-installed .venv-peers/.installed  ## us beside the peers; `make bench ARGS=--quick` in minutes
	$(RUN) -m benchmarks.bench $(ARGS)

lock: .venv-tools/.installed  ## writes the hashes anew; what is locked keeps its version as long as it fits
	$(COMPILE) requirements.txt --output-file requirements.lock
	$(COMPILE) requirements-dev.txt --constraint requirements.lock --output-file requirements-dev.lock
	$(COMPILE) requirements-alone.txt --no-deps --output-file requirements-alone.lock
	$(COMPILE) requirements-tools.txt --output-file requirements-tools.lock

audit: .venv-tools/.installed  ## known weaknesses of what is locked; where nobody can be asked, says so and goes on
	.venv-tools/bin/python .ci/audit.py requirements*.lock

clean:
	rm -rf .venv .venv-peers .venv-tools .bench .pytest_cache .ruff_cache

.venv/.installed: requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info[:2] == (3, 11) else "Python 3.11 is needed, but this is " + sys.version)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python $(INSTALL) -r requirements.lock
	touch $@

.venv-peers/.installed: benchmarks/peers/requirements.txt
	test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers/requirements.txt
	touch $@

.venv/.dev-installed: requirements-dev.lock requirements-alone.lock .venv/.installed
	$(BIN)/python $(INSTALL) -r requirements-dev.lock
	$(BIN)/python $(INSTALL) --no-deps -r requirements-alone.lock
	touch $@

.venv-tools/.installed: requirements-tools.lock
	test -x .venv-tools/bin/python || $(PYTHON) -m venv .venv-tools
	.venv-tools/bin/python $(INSTALL) -r requirements-tools.lock
	touch $@
