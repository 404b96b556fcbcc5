"""Pax's 22-billion-parameter models on C4, on several TPU slices, with the values of MaxText.

MaxText's names and values for 2xv4-128 (its `scale` of 3 is applied to the first four):

    Pax                     MaxText                             value
    NUM_LAYERS              base_num_decoder_layers (16)           48
    MODEL_DIMS              base_emb_dim (2048)                  6144
    HIDDEN_DIMS             base_mlp_dim (8192)                 24576
    NUM_HEADS               base_num_heads (8)                     24
    DIMS_PER_HEAD           head_dim                              256
    PERCORE_BATCH_SIZE      per_device_batch_size                  16
    MAX_SEQ_LEN             max_target_length                    1024
    VOCAB_SIZE              vocab_size                          32768
    FPROP_DTYPE             dtype                            bfloat16
    USE_REPEATED_LAYER                                           True
    SUMMARY_INTERVAL_STEPS                                         10
    ICI_MESH_SHAPE          ici_fsdp_parallelism           [1, 64, 1]
    DCN_MESH_SHAPE          dcn_data_parallelism            [2, 1, 1]

They are the fields of `search_spaces.spmd.SpmdLm` with these names.
"""

import dataclasses

from search_spaces.c4 import C4SpmdAdam
from trainer.experiment import Experiment

_MAXTEXT = C4SpmdAdam(
    num_layers=48,
    model_dims=6144,
    hidden_dims=24_576,
    num_heads=24,
    dims_per_head=256,
    vocab_size=32_768,
    percore_batch_size=16,
    ici_mesh_shape=(1, 4, 2),
)
_V4_128 = dataclasses.replace(_MAXTEXT, ici_mesh_shape=(1, 64, 1))
_V4_384 = dataclasses.replace(
    _V4_128,
    num_layers=24,
    model_dims=9216,
    hidden_dims=36_864,
    dims_per_head=384,
    percore_batch_size=10,
    ici_mesh_shape=(1, 192, 1),
)


def C4Spmd22BAdamMaxText() -> Experiment:
    """22 billion parameters on 4 × 2 devices, 128 rows per step; the base of the others.

    python -m trainer.inspect --exp=c4_multislice.C4Spmd22BAdamMaxText
    """
    return _MAXTEXT.made()


def C4Spmd22BAdam1xv4_128() -> Experiment:
    """The same model on one slice of 64 chips, 1,024 rows per step.

    python -m trainer.inspect --exp=c4_multislice.C4Spmd22BAdam1xv4_128
    """
    return _V4_128.made()


def C4Spmd22BAdam2xv4_128() -> Experiment:
    """The same on two slices, each with all parameters: 2,048 rows per step.

    python -m trainer.inspect --exp=c4_multislice.C4Spmd22BAdam2xv4_128
    """
    return dataclasses.replace(_V4_128, num_slices=2).made()


def C4Spmd22BAdam4xv4_128() -> Experiment:
    """The same on four slices: 4,096 rows per step.

    python -m trainer.inspect --exp=c4_multislice.C4Spmd22BAdam4xv4_128
    """
    return dataclasses.replace(_V4_128, num_slices=4).made()


def C4Spmd22BAdam1xv4_384() -> Experiment:
    """A wider and shallower model, on one slice of 192 chips: 1,920 rows per step.

    python -m trainer.inspect --exp=c4_multislice.C4Spmd22BAdam1xv4_384
    """
    return _V4_384.made()


def C4Spmd22BAdam2xv4_384() -> Experiment:
    """The same on two slices: 3,840 rows per step.

    python -m trainer.inspect --exp=c4_multislice.C4Spmd22BAdam2xv4_384
    """
    return dataclasses.replace(_V4_384, num_slices=2).made()
