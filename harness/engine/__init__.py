"""The decode loop and what it is made of; knows no method by name."""

# Raised by hand when the output or the counts of a method can change: finished cells of another version are run again.
# It stands here so that planning a sweep need not import torch's and transformers' parts of the engine.
ENGINE_VERSION = 2
