"""The quantizer: a float ONNX model in, a measured int8 model out.

`quantizer` calls the stages in their order: `passes` prepares, `calibration` observes, `planning` decides, `forms`
writes, `refinement` tries, `verification` measures, `report` tells. `data` feeds them.
"""
