#!/usr/bin/env python3
"""Makes the vectors that say what the default model answers: greedy.json, logits_sample.*, positions.*.

    make_logits.py            greedy.json, logits_sample.{json,bin}, positions.{json,bin}
    make_logits.py --spread   only prints how far correct but rounded implementations are from the oracle on positions.*

README.md beside this file says what each output holds. Needs Debian's bible-kjv, and the packages named in oracle.py.
"""

import argparse
import hashlib
import json
import subprocess

import numpy as np
import oracle
import torch

GREEDY_TOKENS = 48
SAMPLED = ["chat_capital", "raw_129_tokens", "chat_long_document", "raw_600_tokens"]
SUBSET = [768 * i + 17 for i in range(64)]
TOP = 5
# Books whose style differs, so that the positions are not all alike: (first verse-last verse, tokens).
PASSAGES = [("gen1:1-3:24", 768), ("ps23:1-27:14", 384), ("prov10:1-12:28", 384), ("acts27:1-28:31", 640)]
OWN_TEXT = ["scripts/install_deps.sh", "scripts/fetch_model.sh"]
OWN_TOKENS = 256

DOCUMENT = """\
The river harbour of the old town was built in three stages. The first quay, of oak piles and rammed earth, was only \
ninety paces long and silted up every spring. When the timber trade grew, the council hired a master from the coast, \
who laid a second quay of dressed stone and cut a channel so that barges could turn without being hauled by horses. \
The third stage came after the flood, when the warehouses on the low bank were lost in a single night: the new ones \
were raised on arches, and the ground beneath them was left open to the water on purpose. A clerk kept the ledger of \
every barge that paid its toll, and from that ledger we know that salt, grain and slate made up nine tenths of the \
cargo, that the toll was never raised in forty years, and that the harbour master was twice fined for sleeping.
"""


def passage(verses):
    """King James text without the verse numbers; public domain."""
    lines = subprocess.run(["bible", "-f", verses], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return "\n".join(line.split(" ", 1)[1] for line in lines) + "\n"


def prompts(tokenizer):
    def chat(name, *messages):
        messages = [{"role": role, "content": content} for role, content in messages]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return {"name": name, "text": text, "ids": tokenizer.encode(text, add_special_tokens=False)}

    def raw(name, text, length=None):
        ids = tokenizer.encode(text, add_special_tokens=False)[:length]
        assert length is None or len(ids) == length, (name, len(ids))
        return {"name": name, "text": tokenizer.decode(ids), "ids": ids}

    genesis, luke = passage("gen1:1-6:22"), passage("luke2:1-3:38")
    return [
        chat("chat_capital", ("user", "What is the capital of France?")),
        chat("chat_poem", ("user", "Write a short poem about the sea.")),
        chat("chat_system", ("system", "You answer in one short sentence."), ("user", "Why is the sky blue?")),
        chat("chat_turns", ("user", "My name is Ada and I like trains."), ("assistant", "Nice to meet you, Ada!"),
             ("user", "What is my name, and what do I like?")),
        chat("chat_scripts", ("user", "Translate to English: Guten Morgen, wie geht es dir? \u4f60\u597d \U0001f642")),
        chat("chat_long_document", ("user", "Summarise this text in two sentences.\n\n" + DOCUMENT)),
        raw("raw_sentence", "The capital of France is"),
        raw("raw_code", "def fibonacci(n):\n    if n < 2:\n        return n\n"),
        raw("raw_digits", "1, 2, 3, 4, 5, 6, 7, 8,"),
        raw("raw_one_token", "Once", 1),
        raw("raw_32_tokens", genesis, 32),
        raw("raw_33_tokens", luke, 33),
        raw("raw_129_tokens", genesis, 129),
        raw("raw_600_tokens", luke, 600),
    ]


@torch.inference_mode()
def greedy(model, ids):
    """48 tokens, past the end-of-sequence token too, with the best two ids of each step and the last prompt logits."""
    inputs, cache = torch.tensor([ids]), None
    steps, first = [], None
    for _ in range(GREEDY_TOKENS):
        out = model(input_ids=inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, logits = out.past_key_values, out.logits[0, -1]
        first = logits if first is None else first
        best = torch.topk(logits, 2)
        steps.append({
            "token": best.indices[0].item(),
            "second": best.indices[1].item(),
            "gap": round((best.values[0] - best.values[1]).item(), 5),
            "logprob": round((best.values[0] - torch.logsumexp(logits, 0)).item(), 5),
        })
        inputs = best.indices[:1].reshape(1, 1)
    return steps, first


def make_greedy(model, tokenizer, header):
    rows, sample = [], {}
    for prompt in prompts(tokenizer):
        steps, first = greedy(model, prompt["ids"])
        sample[prompt["name"]] = (prompt["ids"], first.numpy().astype("<f4"))
        rows.append({
            **prompt,
            "greedy": [step["token"] for step in steps],
            "second": [step["second"] for step in steps],
            "gap": [step["gap"] for step in steps],
            "logprob": [step["logprob"] for step in steps],
            "greedy_text": tokenizer.decode([step["token"] for step in steps]),
        })
        print(f"{prompt['name']}: {len(prompt['ids'])} tokens, smallest gap {min(rows[-1]['gap'])}")
    oracle.write_json(oracle.GOLDEN / "greedy.json", {**header, "prompts": rows})

    vectors = [{"name": name, "row": row, "ids": sample[name][0]} for row, name in enumerate(SAMPLED)]
    oracle.write_json(oracle.GOLDEN / "logits_sample.json", {
        **header, "rows": len(SAMPLED), "columns": int(model.config.vocab_size), "vectors": vectors})
    np.stack([sample[name][1] for name in SAMPLED]).tofile(oracle.GOLDEN / "logits_sample.bin")


def segments(tokenizer):
    root = oracle.GOLDEN.parent.parent
    texts = [(verses, passage(verses), length) for verses, length in PASSAGES]
    texts += [(name, (root / name).read_text(), OWN_TOKENS) for name in OWN_TEXT]
    rows = []
    for name, text, length in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert len(ids) > length, (name, len(ids))
        rows.append({"name": name, "ids": ids[:length + 1]})
    return rows


@torch.inference_mode()
def segment_logits(model, ids):
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()


POSITION = np.dtype([
    ("top_ids", "<i4", TOP), ("top_logits", "<f4", TOP), ("logsumexp", "<f4"), ("next_logit", "<f4"),
    ("subset", "<f4", len(SUBSET)),
])


def make_positions(model, tokenizer, header):
    rows, records, first = [], [], 0
    for segment in segments(tokenizer):
        logits = segment_logits(model, segment["ids"][:-1])
        best = torch.topk(logits, TOP)
        record = np.zeros(len(logits), POSITION)
        record["top_ids"] = best.indices.numpy()
        record["top_logits"] = best.values.numpy()
        record["logsumexp"] = torch.logsumexp(logits, 1).numpy()
        record["next_logit"] = logits.gather(1, torch.tensor(segment["ids"][1:]).unsqueeze(1))[:, 0].numpy()
        record["subset"] = logits[:, SUBSET].numpy()
        records.append(record)
        rows.append({**segment, "first_record": first, "records": len(record)})
        first += len(record)
        print(f"{segment['name']}: {len(record)} positions")
    records = np.concatenate(records)
    records.tofile(oracle.GOLDEN / "positions.bin")
    nll = float((records["logsumexp"] - records["next_logit"]).mean(dtype=np.float64))
    oracle.write_json(oracle.GOLDEN / "positions.json", {
        **header, "records": len(records), "record_bytes": POSITION.itemsize, "top": TOP, "subset_ids": SUBSET,
        "mean_negative_log_likelihood": round(nll, 6), "segments": rows})


# How far correct implementations differ ------------------------------------------------------------------------------


def quantise_activations(module, inputs):
    """Every linear layer's input as 8-bit integers in blocks of 32 with one float scale: what int8 kernels see."""
    x = inputs[0]
    blocks = x.float().reshape(*x.shape[:-1], -1, 32)
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    rounded = torch.where(scale > 0, torch.round(blocks / torch.where(scale > 0, scale, 1)), 0) * scale
    return (rounded.reshape(x.shape).to(x.dtype),)


class RoundedKv:
    """While active, K (after RoPE) and V are rounded to bf16 before attention reads them, as a bf16 cache does."""

    def __enter__(self):
        from transformers.models.llama import modeling_llama

        self.module, self.apply = modeling_llama, modeling_llama.apply_rotary_pos_emb

        def rounded(*args, **kwargs):
            q, k = self.apply(*args, **kwargs)
            return q, k.bfloat16().float()

        modeling_llama.apply_rotary_pos_emb = rounded

    def __exit__(self, *unused):
        self.module.apply_rotary_pos_emb = self.apply


def compare(name, model, reference, segment_rows):
    full, subset, l2, subset_l2, gaps, agree, nll, reference_nll, margin = [], [], [], [], [], [], [], [], []
    for segment, oracle_logits in zip(segment_rows, reference):
        logits = segment_logits(model, segment["ids"][:-1])
        full.append(torch.cosine_similarity(logits, oracle_logits, dim=1))
        subset.append(torch.cosine_similarity(logits[:, SUBSET], oracle_logits[:, SUBSET], dim=1))
        l2.append((logits - oracle_logits).norm(dim=1) / oracle_logits.norm(dim=1))
        subset_l2.append((logits - oracle_logits)[:, SUBSET].norm(dim=1) / oracle_logits[:, SUBSET].norm(dim=1))
        best = torch.topk(oracle_logits, 2).values
        gaps.append(best[:, 0] - best[:, 1])
        agree.append(logits.argmax(1) == oracle_logits.argmax(1))
        following = torch.tensor(segment["ids"][1:]).unsqueeze(1)
        own = torch.log_softmax(logits, 1).gather(1, following)[:, 0]
        theirs = torch.log_softmax(oracle_logits, 1).gather(1, following)[:, 0]
        nll.append(-own)
        reference_nll.append(-theirs)
        margin.append((own - theirs).abs())
    full, subset, l2, subset_l2 = map(torch.cat, (full, subset, l2, subset_l2))
    gaps, agree, margin = map(torch.cat, (gaps, agree, margin))
    share = [f"{100 * agree[gaps > bound].float().mean():.2f}%" for bound in (-1, 0.1, 0.25, 0.5, 1.0)]
    print(f"{name}: {len(full)} positions\n"
          f"  cosine, all logits:  mean {full.mean():.6f} min {full.min():.5f}\n"
          f"  cosine, subset:      mean {subset.mean():.6f} min {subset.min():.5f}\n"
          f"  relative L2 error:   all logits {l2.mean():.5f}, subset {subset_l2.mean():.5f}\n"
          f"  top-1 agreement:     all {share[0]}, gap > 0.1 {share[1]}, > 0.25 {share[2]}, > 0.5 {share[3]}, > 1 {share[4]}\n"
          f"  next token's logprob: mean |difference| {margin.mean():.5f}, max {margin.max():.4f}\n"
          f"  mean negative log-likelihood {torch.cat(nll).mean():.5f} against {torch.cat(reference_nll).mean():.5f}",
          flush=True)


def spread(gguf):
    committed = json.loads((oracle.GOLDEN / "positions.json").read_text())["segments"]
    model = oracle.load_model(gguf)
    reference = [segment_logits(model, segment["ids"][:-1]) for segment in committed]

    rounded_v = [layer.self_attn.v_proj.register_forward_hook(lambda m, i, out: out.bfloat16().float())
                 for layer in model.model.layers]
    with RoundedKv():
        compare("float32 with the KV cache in bf16", model, reference, committed)
    for hook in rounded_v:
        hook.remove()
    eight_bit = [layer.register_forward_pre_hook(quantise_activations)
                 for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    compare("float32 with 8-bit activations in blocks of 32", model, reference, committed)
    for hook in eight_bit:
        hook.remove()
    compare("bf16 throughout", model.to(torch.bfloat16), reference, committed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spread", action="store_true")
    args = parser.parse_args()

    torch.set_num_threads(1)
    gguf = oracle.model_path()
    if args.spread:
        spread(gguf)
        return
    tokenizer, model = oracle.load_tokenizer(gguf), oracle.load_model(gguf)
    header = {"model": gguf.name, "model_sha256": hashlib.sha256(gguf.read_bytes()).hexdigest()}
    make_greedy(model, tokenizer, header)
    make_positions(model, tokenizer, header)


if __name__ == "__main__":
    main()
