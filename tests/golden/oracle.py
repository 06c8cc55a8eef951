"""What the golden scripts share: the oracle model, its tokenizer, and small helpers. Not a script itself.

The oracle is HF transformers in float32 on the dequantised weights of a GGUF file.
Needs: pip install torch transformers accelerate gguf.
"""

import json
import os
import pathlib
import subprocess

GOLDEN = pathlib.Path(__file__).resolve().parent


def model_path():
    """The default model's GGUF: $BATON_TEST_MODEL, or what scripts/fetch_model.sh prints."""
    named = os.environ.get("BATON_TEST_MODEL")
    if named:
        return pathlib.Path(named)
    script = GOLDEN.parent.parent / "scripts" / "fetch_model.sh"
    return pathlib.Path(subprocess.run([script], check=True, stdout=subprocess.PIPE, text=True).stdout.strip())


def load_tokenizer(gguf):
    """The HF tokenizer of a GGUF whose pre-tokenizer is `smollm`.

    transformers reads vocabulary and merges but not `tokenizer.ggml.pre`: it always takes the GPT-2 pattern. The model
    was trained with every digit alone, which differs wherever white space precedes a digit; so that is put back here.
    """
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
    ])
    return tokenizer


def load_model(gguf):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    model.eval()
    # The weights are plain float32 now; without this transformers refuses to save or to convert them.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model


def write_json(path, value):
    """One line per item of the top-level lists, so that diffs and pagers stay usable."""
    lines = []
    for key, item in value.items():
        if isinstance(item, list) and item and isinstance(item[0], (dict, list)):
            rows = ",\n".join("  " + json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in item)
            lines.append(f"{json.dumps(key)}: [\n{rows}\n]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(item, ensure_ascii=False)}")
    pathlib.Path(path).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
