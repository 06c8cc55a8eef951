#!/usr/bin/env python3
"""Makes tokenizers.json and splits.json: what HF `tokenizers` does, for tests that need no model file.

tokenizers.json  small tokenizers (whole tokenizer.json texts, trained here) in the shapes of several model families, each with
                 texts and their ids, and ids and their texts.
splits.json      how the families' patterns cut texts into words; and per 4,096 code points a hash of how they cut a short
                 text around every character that Unicode 14 knows (PCRE2 10.42 knows no newer ones).

Needs `pip install tokenizers` and a Python whose unicodedata is Unicode 14 (3.11).
"""

import json
import pathlib
import random
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).resolve().parent
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
         r"\s*[\r\n]+|\s+(?!\S)|\s+")


def corpus():
    samples = json.loads((HERE.parent / "tokenizer_vectors.json").read_text())["samples"]
    return [s["text"] for s in samples]


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def byte_level(use_regex):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


SPECIAL = [AddedToken(t, special=True, normalized=False) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "stop")]
ODD = [AddedToken("<tool_call>", normalized=False), AddedToken("<l>", lstrip=True, normalized=False), AddedToken("<r>", rstrip=True, normalized=False),
       AddedToken("word", single_word=True, normalized=False), AddedToken("caf\u00e9s", normalized=True), AddedToken("   ", normalized=False),
       AddedToken("<tool", normalized=False)]


def train(texts, pre, vocab=480, normalizer=None, alphabet=True, **model):
    tok = Tokenizer(models.BPE(**model))
    if normalizer:
        tok.normalizer = normalizer
    tok.pre_tokenizer = pre
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [])
    tok.train_from_iterator(texts, trainer)
    tok.add_tokens(ODD)
    return tok


def families(texts):
    yield "smollm", train(texts, pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(True)]))
    yield "gpt2, bytes missing", train([t for t in texts if t.isascii()], byte_level(True), vocab=300, alphabet=False)
    qwen = train(texts, pre_tokenizers.Sequence([split(QWEN2), byte_level(False)]), normalizer=normalizers.NFC())
    qwen.post_processor = processors.ByteLevel(trim_offsets=False)
    yield "qwen2", qwen
    llama = train(texts, pre_tokenizers.Sequence([split(LLAMA3), byte_level(False)]), ignore_merges=True)
    llama.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<|im_start|> $A <|endoftext|>", special_tokens=[("<|im_start|>", 1), ("<|endoftext|>", 0)])])
    yield "llama3", llama
    yield "removed", train(texts, pre_tokenizers.Sequence([split(GPT2, "removed", True), byte_level(False)]))
    yield "text split", train(texts, pre_tokenizers.Sequence([pre_tokenizers.Split("a.", "isolated"), byte_level(True)]))


PARTS = [" ", "  ", "\n", "\t", "a", "a.", "The", "don't", "'S", "9", "2024", "\u00e9", "e\u0301", "\u1100\u1161", "caf\u00e9s", "cafe\u0301s", "\u4e2d\u6587", "\U0001f642", "\u0421\u043b\u043e\u0432\u043e", "\u0645\u0631\u062d\u0628\u0627",
         "word", "words", "<|im_end|>", "<|im_start|>", "<|im_", "stop", "<tool_call>", "<tool", "_call>", "<l>", "<r>", "\u3000", "\x00", "\x1f", "\u0301", "!?", "/*", "\r\n", "\u180e", "\u017f", "'\u017f"]


def make_tokenizers():
    r = random.Random(7)
    texts = corpus()
    out = []
    for name, tok in families(texts):
        samples = r.sample([t for t in texts if len(t) < 200], 40)
        samples += ["".join(r.choice(PARTS) for _ in range(r.randint(1, 12))) for _ in range(110)]
        size = tok.get_vocab_size()
        # HF writes a token that was added as \u201ccaf\u00e9s\u201d in Latin-1: bytes that are not its text. Not repeated here.
        plain = [i for i in range(size) if i != tok.token_to_id("caf\u00e9s")]
        ids = [[r.choice(plain) for _ in range(r.randint(1, 14))] for _ in range(50)]
        out.append({
            "name": name, "tokenizer": tok.to_str(),
            "encode": [[t, tok.encode(t, add_special_tokens=False).ids, tok.encode(t).ids] for t in samples],
            "decode": [[i, tok.decode(i, skip_special_tokens=True), tok.decode(i, skip_special_tokens=False)] for i in ids],
        })
    write("tokenizers.json", {"tokenizers": out})


def fnv(data, h=0xcbf29ce484222325):
    for byte in data:
        h = (h ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return h


def make_splits():
    assert unicodedata.unidata_version.startswith("14.")
    known = [not 0xd800 <= c < 0xe000 and unicodedata.category(chr(c)) != "Cn" for c in range(0x110000)]
    unknown = []
    for c in range(0x110000):
        if not known[c]:
            if unknown and unknown[-1][1] == c - 1:
                unknown[-1][1] = c
            else:
                unknown.append([c, c])
    r = random.Random(8)
    texts = [t for t in corpus() if len(t) < 120][:150]
    texts += ["".join(r.choice(PARTS) for _ in range(r.randint(1, 12))) for _ in range(250)]
    patterns = []
    for name, pattern in (("gpt2", GPT2), ("llama3", LLAMA3), ("qwen2", QWEN2)):
        pre = split(pattern)
        cut = lambda t: [len(s.encode()) for s, _ in pre.pre_tokenize_str(t)]
        blocks = []
        for first in range(0, 0x110000, 4096):
            h = 0xcbf29ce484222325
            for c in range(first, first + 4096):
                if known[c]:
                    x = chr(c)
                    h = fnv(bytes(cut(f"a{x}b '{x} {x}{x}1!{x}\n")), h)
            blocks.append(f"{h:016x}")
        patterns.append({"name": name, "words": [[t, cut(t)] for t in texts], "sweep": blocks})
    write("splits.json", {"unknown": unknown, "patterns": patterns})


def dump(value):
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def write(name, value):
    """One line per item of the lists inside the top list's objects."""
    (key, entries), *rest = [(k, v) for k, v in value.items() if k in ("tokenizers", "patterns")] + [(k, v) for k, v in value.items() if k == "unknown"]
    objects = []
    for entry in entries:
        parts = [dump(k) + ":" + ("[\n" + ",\n".join(map(dump, v)) + "]" if isinstance(v, list) and isinstance(v[0], list) else dump(v)) for k, v in entry.items()]
        objects.append("{" + ",\n".join(parts) + "}")
    head = "".join(f"{dump(k)}:{dump(v)},\n" for k, v in rest)
    (HERE / name).write_text("{" + head + dump(key) + ":[\n" + ",\n".join(objects) + "]}\n")
    json.loads((HERE / name).read_text())


if __name__ == "__main__":
    make_tokenizers()
    make_splits()
