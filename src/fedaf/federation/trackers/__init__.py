"""Trackers: observers that send a run to TensorBoard, MLflow or Weights & Biases, one file each."""
