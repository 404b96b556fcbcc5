"""Decoders: greedy, sampling and beam search, and the texts that they generate.

`trainer.loop.decode_loop` runs them over decode sets.
"""

from trainer.decoding.base import Decoded as Decoded
from trainer.decoding.base import Decoder as Decoder
from trainer.decoding.base import Prompts as Prompts
from trainer.decoding.beam import BeamSearch as BeamSearch
from trainer.decoding.check import check_decoding as check_decoding
from trainer.decoding.sampling import Greedy as Greedy
from trainer.decoding.sampling import Sample as Sample
