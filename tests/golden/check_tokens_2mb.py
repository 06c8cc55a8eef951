#!/usr/bin/env python3
"""Compares `baton tokenize` with HF `tokenizers` on 2 MB or more of mixed natural text and code.

    check_tokens_2mb.py --baton build/release/baton [--model MODEL.gguf] [--cache FOLDER]

The text comes from Debian packages (scripts/install_deps.sh --text) and Python's own standard library; `tokenizers` and
`gguf` go into a virtual environment under --cache (~/.cache/baton). Exits 0 when every line agrees, 1 when one does
not, 77 (skipped, for ctest) when the text or the packages are not to be had.

`baton tokenize MODEL --batch FILE` reads one JSON string a line and prints one JSON array of token ids a line.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile

import oracle

SKIPPED = 77
PACKAGES = ["tokenizers==0.23.3", "gguf==0.19.0"]
LEAST_BYTES = 2_000_000
LIMITS = {"bible": 500_000, "fortunes": 900_000, "names": 500_000, "python": 600_000}
PIECE = 2000  # characters of one sample, at most


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def reexecute_in_venv(cache):
    """The packages are not Debian's: they live in a virtual environment of their own."""
    venv = cache / "tokenizer-oracle"
    python = venv / "bin" / "python"
    stamp = venv / "packages"
    wanted = "\n".join(PACKAGES)
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(venv, ignore_errors=True)
        made = subprocess.run([sys.executable, "-m", "venv", venv])
        if made.returncode != 0:
            skip("python3-venv is not installed")
        installed = subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES])
        if installed.returncode != 0:
            skip("pip could not install " + " ".join(PACKAGES))
        stamp.write_text(wanted)
    os.execv(python, [python, __file__, *sys.argv[1:]])


def bible():
    if not shutil.which("bible"):
        return ""
    return subprocess.run(["bible", "-f", "job1:1-isa66:24"], check=True, stdout=subprocess.PIPE, text=True).stdout


def fortunes():
    """Every language gets the same share."""
    folders = {}
    for path in sorted(pathlib.Path("/usr/share/games/fortunes").rglob("*")):
        if path.is_file() and not path.is_symlink() and path.suffix not in (".dat", ".u8"):
            folders.setdefault(path.parent, []).append(path)
    share = LIMITS["fortunes"] // max(1, len(folders))
    texts = []
    for folder in sorted(folders):
        text = "".join(path.read_bytes().decode("utf-8", errors="ignore") for path in folders[folder])
        texts.append(text.encode()[:share].decode("utf-8", errors="ignore"))
    return "\n".join(texts)


def names():
    """Names of countries and languages in more than a hundred languages, out of the .mo catalogues of iso-codes."""
    import gettext

    texts = []
    for path in sorted(pathlib.Path("/usr/share/locale").glob("*/LC_MESSAGES/iso_3166-1.mo")):
        with open(path, "rb") as file:
            catalogue = gettext.GNUTranslations(file)._catalog
        texts.append(", ".join(value for key, value in sorted(catalogue.items(), key=str) if isinstance(value, str) and key))
    return "\n".join(texts)


def python_sources():
    folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
    return "".join(path.read_text(encoding="utf-8", errors="ignore") for path in sorted(folder.glob("*.py")))


def samples():
    """Pieces of every source, cut at places that have nothing to do with words, and a few where the cut is a line."""
    rng = random.Random(7)
    sources = {"bible": bible(), "fortunes": fortunes(), "names": names(), "python": python_sources()}
    pieces = []
    for name, text in sources.items():
        text = text.encode()[:LIMITS[name]].decode("utf-8", errors="ignore")
        print(f"{name}: {len(text.encode())} bytes")
        start = 0
        while start < len(text):
            length = rng.randint(1, PIECE)
            pieces.append(text[start:start + length])
            start += length
    return pieces


def reference_tokenizer(model):
    """The tokenizer of a GGUF file with the `smollm` pre-tokenizer, built from its vocabulary and merges."""
    import gguf
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    reader = gguf.GGUFReader(model)

    def field(name):
        return reader.get_field(f"tokenizer.ggml.{name}").contents()

    assert (field("model"), field("pre")) == ("gpt2", "smollm"), "this oracle knows only the default model's tokenizer"
    tokens, types = field("tokens"), field("token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in field("merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    control = gguf.TokenType.CONTROL
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)
                                  for token, kind in zip(tokens, types) if kind == control])
    return tokenizer


def compare(texts, expected, lines):
    for text, ids, line in zip(texts, expected, lines):
        found = json.loads(line)
        if found != ids:
            first = next((i for i, (a, b) in enumerate(zip(found, ids)) if a != b), min(len(found), len(ids)))
            print(f"differs at token {first} of {len(ids)}:\n  text     {text[:400]!r}\n"
                  f"  expected {ids[first:first + 12]}\n  found    {found[first:first + 12]}")
            return 1
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baton", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, help="default: the model of scripts/fetch_model.sh")
    parser.add_argument("--cache", type=pathlib.Path,
                        default=pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "baton")
    args = parser.parse_args()
    try:
        import gguf  # noqa: F401
        import tokenizers  # noqa: F401
    except ImportError:
        reexecute_in_venv(args.cache)
    model = args.model or oracle.model_path()

    texts = samples()
    size = sum(len(text.encode()) for text in texts)
    if size < LEAST_BYTES:
        skip(f"{size} bytes of text, fewer than {LEAST_BYTES}; scripts/install_deps.sh --text installs the packages")
    expected = [encoding.ids for encoding in reference_tokenizer(model).encode_batch(texts, add_special_tokens=False)]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps(text) + "\n" for text in texts)
        file.flush()
        result = subprocess.run([args.baton, "tokenize", model, "--batch", file.name],
                                stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        print(f"baton tokenize exited with {result.returncode}")
        return 1
    lines = result.stdout.splitlines()
    if len(lines) != len(texts):
        print(f"{len(lines)} lines out for {len(texts)} texts in")
        return 1
    status = compare(texts, expected, lines)
    if status == 0:
        print(f"equal: {len(texts)} texts, {size} bytes, {sum(map(len, expected))} tokens")
    return status


if __name__ == "__main__":
    sys.exit(main())
