"""Usual values that several components and the names of arguments share.

They need no JAX, as a search of a function does not.
"""

from trainer.symbolic.usual_values import UsualValue

RATE = UsualValue(1e-3, 1e-4, 1e-2, 'Kingma & Ba 2015 (Adam): 0.001; Bengio 2012 (SGD): 0.01')
B1 = UsualValue(0.9, 0.88, 0.95, 'Kingma & Ba 2015; GPT-3 (Brown et al. 2020)')
B2 = UsualValue(0.98, 0.95, 0.999, '0.999: Kingma & Ba 2015; 0.95: GPT-3, LLaMA')
EPSILON = UsualValue(1e-8, 1e-9, 1e-6, 'Kingma & Ba 2015; 1e-6: BERT, RoBERTa')
WEIGHT_DECAY = UsualValue(0.01, 1e-3, 0.1, 'Loshchilov & Hutter 2019, BERT: 0.01; GPT-3: 0.1')
MOMENTUM = UsualValue(0.9, 0.85, 0.95, 'Sutskever et al. 2013, He et al. 2016')
SGD_RATE = UsualValue(0.1, 0.01, 0.3, 'He et al. 2016, Goyal et al. 2017: 0.1; Bengio 2012: 0.01')
L2 = UsualValue(1e-4, 5e-5, 5e-4, 'He et al. 2016; 5e-4: Zagoruyko & Komodakis 2016')
NO_PENALTY = UsualValue(
    0.0, 0.0, 1e-5, 'none in the recipes of Adam: Loshchilov & Hutter 2019, BERT, GPT-3, LLaMA'
)
DROPOUT = UsualValue(0.1, 0.05, 0.3, 'Vaswani et al. 2017, BERT: 0.1; Srivastava et al. 2014: more')
LABEL_SMOOTHING = UsualValue(0.1, 0.05, 0.15, 'Szegedy et al. 2016, Vaswani et al. 2017')
WARMUP_SHARE = UsualValue(0.06, 0.02, 0.1, 'RoBERTa (Liu et al. 2019): 0.06; BERT: 0.01 to 0.1')
CLIP_NORM = UsualValue(1.0, 0.5, 2.0, 'GPT-3, BERT: 1; Pascanu et al. 2013')
BATCH_SIZE = UsualValue(64, 32, 256, 'Bengio 2012: 32; He et al. 2016: 256')
EMA_DECAY = UsualValue(0.999, 0.99, 0.9999, 'Tarvainen & Valpola 2017; Ho et al. 2020: 0.9999')
SHRINKAGE = UsualValue(0.1, 0.03, 0.3, 'Friedman 2001: at most 0.1; default of XGBoost: 0.3')
TREE_DEPTH = UsualValue(6, 3, 8, 'default of XGBoost: 6; Hastie et al. 2009: 3 to 8')
SUBSAMPLE = UsualValue(0.8, 0.5, 1.0, 'Friedman 2002: 0.5 to 0.8')
