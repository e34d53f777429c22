"""Text and files in, tensors out."""
