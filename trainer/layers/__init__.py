"""The layers that models are made of."""

from trainer.layers.attention import Attention as Attention
from trainer.layers.base import Layer as Layer
from trainer.layers.dropout import Dropout as Dropout
from trainer.layers.embedding import Embedding as Embedding
from trainer.layers.feed_forward import FeedForward as FeedForward
from trainer.layers.feed_forward import GatedFeedForward as GatedFeedForward
from trainer.layers.linear import Linear as Linear
from trainer.layers.normalization import LayerNorm as LayerNorm
from trainer.layers.normalization import Normalization as Normalization
from trainer.layers.normalization import RMSNorm as RMSNorm
from trainer.layers.positions import Positions as Positions
from trainer.layers.stack import Stack as Stack
from trainer.layers.stack import per_layer as per_layer
from trainer.layers.stack import stacked as stacked
from trainer.layers.transformer import Identity as Identity
from trainer.layers.transformer import Residual as Residual
from trainer.layers.transformer import TransformerBlock as TransformerBlock
from trainer.layers.transformer import TransformerLm as TransformerLm
