"""Plans of networks, from ONNX files or by name."""
