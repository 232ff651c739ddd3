"""From a model to a plan: ONNX files and known networks."""
