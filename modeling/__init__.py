"""The network: tensors in, tensors out."""

import keras

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"This is a TensorFlow project, but Keras runs on {keras.backend.backend()}. "
        "Set the environment variable KERAS_BACKEND=tensorflow."
    )
