#!/usr/bin/env python3
"""Makes tests/golden/tiny: small Llama models with random weights in every format that is read, and what they answer.

Seven models: tiny-<type>.gguf for F32, F16, BF16, Q8_0, Q4_0 and Q4_1, and hf-mixed, an HF folder in two shards whose
tensors are BF16, F16 and F32. tiny.json and tiny.bin hold the prompts and the oracle's answers; README.md says how.
All have 4 query heads, 2 KV heads of 32 (wider than hidden / heads), RoPE base 50000 and epsilon 1e-6, so that no default
is right by luck. Needs the packages named in oracle.py.
"""

import json

import gguf
import numpy as np
import oracle
import torch
from safetensors.torch import save_file as save_torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer

from make_logits import DOCUMENT

TINY = oracle.GOLDEN / "tiny"
HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 64, 96, 4, 2, 32, 512
ROPE_BASE, EPSILON = 50000.0, 1e-6
VOCAB = 290
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
            "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
PROMPT_TOKENS, GREEDY_TOKENS = 70, 24
POSITIONS = [0, 1, 15, 16, 31, 32, 63, 64, 69]
# name -> (layers, tied head, type of matrices, type of the embedding). Few layers where a value is wide: files stay small.
Q = gguf.GGMLQuantizationType
GGUF_MODELS = {
    "tiny-f32": (1, True, Q.F32, Q.F32),
    "tiny-f16": (1, False, Q.F16, Q.F16),
    "tiny-bf16": (1, True, Q.BF16, Q.BF16),
    "tiny-q8_0": (2, False, Q.Q8_0, Q.Q8_0),
    "tiny-q4_0": (2, True, Q.Q4_0, Q.Q4_0),
    "tiny-q4_1": (2, False, Q.Q4_1, Q.Q8_0),
}


def make_tokenizer():
    """Byte-level BPE: the special tokens, 256 bytes, then merges; every digit alone, then the GPT-2 pattern."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(text, special=True, normalized=False) for text in SPECIAL]
    tokenizer.train_from_iterator(DOCUMENT.splitlines(), trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=special, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False))
    assert tokenizer.get_vocab_size() == VOCAB
    return tokenizer


def make_weights(seed, layers, tied):
    """HF names and row order, float32."""
    rng = np.random.default_rng(seed)

    def matrix(rows, columns, gain=1.5):
        return (rng.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)

    def norm():
        return (1 + 0.2 * rng.standard_normal(HIDDEN)).astype(np.float32)

    weights = {"model.embed_tokens.weight": matrix(VOCAB, HIDDEN, 2.5), "model.norm.weight": norm()}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "input_layernorm.weight": norm(),
            prefix + "post_attention_layernorm.weight": norm(),
            prefix + "self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD_DIM),
            prefix + "mlp.gate_proj.weight": matrix(FFN, HIDDEN),
            prefix + "mlp.up_proj.weight": matrix(FFN, HIDDEN),
            prefix + "mlp.down_proj.weight": matrix(HIDDEN, FFN),
        }
    if not tied:
        weights["lm_head.weight"] = matrix(VOCAB, HIDDEN, 2.5)
    return weights


def gguf_rows(weight, heads):
    """HF rotates the two halves of a head, GGUF's `llama` neighbouring rows: Q and K are stored with rows interleaved."""
    return weight.reshape(heads, 2, HEAD_DIM // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path, weights, layers, matrix_type, embedding_type, tokenizer):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(path.stem)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_vocab_size(VOCAB)

    vocab = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([text for text, _ in vocab])
    writer.add_token_types([gguf.TokenType.CONTROL if text in SPECIAL else gguf.TokenType.NORMAL for text, _ in vocab])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    for name, weight in weights.items():
        kind = Q.F32 if weight.ndim == 1 else embedding_type if "embed_tokens" in name else matrix_type
        if "q_proj" in name:
            weight = gguf_rows(weight, HEADS)
        elif "k_proj" in name:
            weight = gguf_rows(weight, KV_HEADS)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), gguf.quants.quantize(weight, kind),
                          raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_hf_folder(folder, weights, layers, tokenizer):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FFN,
        "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM, "vocab_size": VOCAB, "max_position_embeddings": CONTEXT, "rms_norm_eps": EPSILON,
        "rope_theta": ROPE_BASE, "rope_scaling": None, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
    }, indent=2) + "\n")
    kinds = [torch.bfloat16, torch.float16, torch.float32]
    shards, index, total = [{}, {}], {}, 0
    for number, (name, weight) in enumerate(weights.items()):
        tensor = torch.from_numpy(weight).to(kinds[number % 2 if weight.ndim == 2 else 2])
        shard = int("layers.1." in name)
        shards[shard][name] = tensor
        index[name] = f"model-{shard + 1:05}-of-00002.safetensors"
        total += tensor.numel() * tensor.element_size()
    for number, tensors in enumerate(shards):
        save_torch(tensors, folder / f"model-{number + 1:05}-of-00002.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {"total_size": total}, "weight_map": dict(sorted(index.items()))}, indent=2) + "\n")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False, "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>", "chat_template": TEMPLATE}, indent=2) + "\n")


@torch.inference_mode()
def answer(model, ids):
    logits = model(input_ids=torch.tensor([ids])).logits[0]
    tokens, gaps, known = [], [], list(ids)
    for _ in range(GREEDY_TOKENS):
        best = torch.topk(model(input_ids=torch.tensor([known])).logits[0, -1], 2)
        tokens.append(best.indices[0].item())
        gaps.append(round((best.values[0] - best.values[1]).item(), 5))
        known.append(tokens[-1])
    return logits[POSITIONS].numpy().astype("<f4"), tokens, gaps


def main():
    TINY.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    tokenizer = make_tokenizer()
    text = "<|im_start|>user\nIn 1734 the toll was 12 pence.<|im_end|>\n" + DOCUMENT
    ids = tokenizer.encode(text).ids[:PROMPT_TOKENS]

    rows, vectors = [], []

    def record(name, path, model):
        logits, tokens, gaps = answer(model, ids)
        rows.append({"name": name, "path": path, "layers": model.config.num_hidden_layers,
                     "tied": model.config.tie_word_embeddings, "first_row": sum(len(v) for v in vectors),
                     "greedy": tokens, "gap": gaps})
        vectors.append(logits)
        print(f"{name}: logits of spread {logits.std():.2f}, smallest gap {min(gaps)}, {tokens[:8]}")

    for seed, (name, (layers, tied, matrix_type, embedding_type)) in enumerate(GGUF_MODELS.items()):
        weights = make_weights(seed, layers, tied)
        path = TINY / f"{name}.gguf"
        write_gguf(path, weights, layers, matrix_type, embedding_type, tokenizer)
        model = oracle.load_model(path)
        assert model.config.tie_word_embeddings == tied and model.config.head_dim == HEAD_DIM
        assert model.config.rope_parameters["rope_theta"] == ROPE_BASE
        if matrix_type == Q.F32:
            loaded = model.state_dict()
            for key, weight in weights.items():
                assert np.array_equal(loaded[key].numpy(), weight), key
        assert oracle.load_tokenizer(path).encode(text, add_special_tokens=False)[:PROMPT_TOKENS] == ids
        record(name, path.name, model)

    weights = make_weights(len(GGUF_MODELS), 2, True)
    write_hf_folder(TINY / "hf-mixed", weights, 2, tokenizer)
    record("hf-mixed", "hf-mixed", AutoModelForCausalLM.from_pretrained(TINY / "hf-mixed", dtype=torch.float32).eval())
    assert AutoTokenizer.from_pretrained(TINY / "hf-mixed").encode(text, add_special_tokens=False)[:PROMPT_TOKENS] == ids

    np.concatenate(vectors).tofile(TINY / "tiny.bin")
    oracle.write_json(TINY / "tiny.json", {
        "text": tokenizer.decode(ids, skip_special_tokens=False), "ids": ids, "columns": VOCAB, "positions": POSITIONS,
        "models": rows})


if __name__ == "__main__":
    main()
