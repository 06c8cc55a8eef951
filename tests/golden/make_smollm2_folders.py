#!/usr/bin/env python3
"""Writes, from the default model's GGUF, what other tools read: its tokenizer.json, and the weights as an HF folder in bf16.

    make_smollm2_folders.py OUTPUT_FOLDER [--weights]

OUTPUT_FOLDER/SmolLM2-tokenizer gets tokenizer.json, tokenizer_config.json and the chat template; with --weights,
OUTPUT_FOLDER/smollm2-hf-bf16 gets them too, with config.json and the dequantised weights in two safetensors files.
"""

import argparse
import pathlib

import oracle


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--weights", action="store_true")
    args = parser.parse_args()

    gguf = oracle.model_path()
    tokenizer = oracle.load_tokenizer(gguf)
    tokenizer.save_pretrained(args.output / "SmolLM2-tokenizer")
    if args.weights:
        import torch

        model = oracle.load_model(gguf).to(torch.bfloat16)
        target = args.output / "smollm2-hf-bf16"
        model.save_pretrained(target, max_shard_size="160MB")
        tokenizer.save_pretrained(target)


if __name__ == "__main__":
    main()
