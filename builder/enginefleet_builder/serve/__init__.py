"""A reference server: the Open Inference Protocol v2 over HTTP, for engines of ONNX Runtime, TensorRT and TensorRT for RTX."""
