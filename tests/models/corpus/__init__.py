"""Small seeded models, each built around something that breaks quantizers, with inputs to run them on."""

from corpus import bodies, images, products, weights
from corpus.builder import MODELS, Builder, Built, entry, vector
from corpus.recurrent import gru, rnn
from corpus.weights import bfloat16

__all__ = [
    "MODELS",
    "Builder",
    "Built",
    "bfloat16",
    "bodies",
    "entry",
    "gru",
    "images",
    "products",
    "rnn",
    "vector",
    "weights",
]
