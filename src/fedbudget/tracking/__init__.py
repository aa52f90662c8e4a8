"""Trackers: callbacks that write a run to TensorBoard, MLflow or Weights & Biases."""
