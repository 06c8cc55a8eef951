#!/usr/bin/env python3
"""Writes, from the default model's GGUF, what other tools read: its tokenizer.json, and the weights as an HF folder in bf16.

    make_smollm2_folders.py MODEL.gguf OUTPUT_FOLDER [--weights]

OUTPUT_FOLDER/SmolLM2-tokenizer gets tokenizer.json, tokenizer_config.json and the chat template; with --weights,
OUTPUT_FOLDER/smollm2-hf-bf16 gets them too, with config.json and the dequantised weights in two safetensors files.
Needs: pip install torch transformers accelerate gguf.
"""

import argparse
import pathlib

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--weights", action="store_true")
    args = parser.parse_args()

    folder, name = str(args.gguf.parent), args.gguf.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    tokenizer.save_pretrained(args.output / "SmolLM2-tokenizer")
    if args.weights:
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
        model = model.to(torch.bfloat16)
        target = args.output / "smollm2-hf-bf16"
        model.save_pretrained(target, max_shard_size="160MB")
        tokenizer.save_pretrained(target)


if __name__ == "__main__":
    main()
