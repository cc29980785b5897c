"""The quantizer: a float ONNX model in, a measured int8 model out. One file a stage."""
