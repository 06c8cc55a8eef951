#!/usr/bin/env python3
"""Makes tokenizer_vectors.json (text -> ids) and chatml.json (conversation -> prompt) of the default model.

The oracle is HF `tokenizers` and the GGUF's own template rendered by transformers. README.md says what the files hold.
"""

import random

import oracle

HAND_MADE = [
    "", " ", "  ", "\n", "\r\n", "\t", "\n\n\n", " \n \n", "\u00a0", "\u3000", "\u2003\u2009", "\x00", "\x01\x02\x1f\x7f", "\ufeffbom",
    "a", "A", "Hello, world!", "Hello  world", "Hello   world ", " leading", "trailing ", "trailing\n", "\n\n  indented",
    "don't can't I'm you're we've he'll she'd it's DON'T IT'S", "''s 't 're'll", "o'clock rock'n'roll", "\u2019s don\u2019t",
    "0", "12", "1234567890", "3.14159", "1,000,000", "a1b2c3", "abc123", " 1", "  1", "   12", "x = 1", "\n1\n2", "\t7",
    "\u00b2\u00b3\u00bd", "\u0661\u0662\u0663", "\u0967\u0968\u0969", "\u2167 \u2173", "\U0001d7d8\U0001d7d9", "\u4e00\u4e8c\u4e09 1\u5e74",
    "ALL CAPS and MixedCase camelCase snake_case kebab-case", "e-mail@example.org https://example.org/a?b=c&d=%20#e",
    "...", "!!!", "?!?!", "--", "---", "====", "/*", "*/", "//", "#!/usr/bin/env", "<<>>", "{{}}", "[](){}", "\\n\\t\\\\", "\"'`",
    "na\u00efve caf\u00e9 co\u00f6perate", "nai\u0308ve cafe\u0301", "\u1e9b\u0323", "A\u030a \u00c5 \u212b", "\ufb01 \ufb02", "stra\u00dfe STRASSE \u1e9e",
    "\U0001f642", "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f44d\U0001f3fd", "\U0001f1eb\U0001f1f7\U0001f1ef\U0001f1f5", "\u2764\ufe0f", "1\ufe0f\u20e3",
    "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "\u200b\u200c\u200d\u2060", "\u202eabc\u202c", "a\u0300\u0301\u0302\u0303\u0304b",
    "\ufffd", "\ufffe", "\U0010ffff", "\ue000", "\u2028\u2029", "\x85", "\x0b\x0c", "\x1c\x1d", "a\u00adb",
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_start|>user\nHi<|im_end|>\n", "a<|im_end|>b", " <|im_end|> ",
    "<|im_start", "|im_start|>", "<|im_start|", "<|IM_START|>", "< |im_start|>", "<|im_start|><|im_start|>", "<|im_start|im_start|>",
    "<|im_<|im_end|>end|>", "<repo_name>x<file_sep>y<filename>z<gh_stars>", "<repo_name", "<reponame>", "<empty_output><jupyter_code>",
    "<s></s>[INST]", "<|eot_id|>", "\u2581 \u0120 \u010a", "<0x0A>",
]
SCRIPTS = {
    "latin": "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Un été à la mer, où l’on dîne près du port.",
    "vietnamese": "Tiếng Việt có sáu thanh điệu, và chữ viết dùng nhiều dấu phụ.",
    "cyrillic": "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "greek": "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Ὦ ἄνδρες Ἀθηναῖοι.",
    "hebrew": "דג סקרן שט בים מאוכזב ולפתע מצא חברה. בְּרֵאשִׁית",
    "arabic": "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر. السَّلَامُ",
    "devanagari": "ऋषियों को सताने वाले दुष्ट राक्षसों का सर्वनाश हुआ। क्ष त्र ज्ञ",
    "bengali": "আমি বাংলায় গান গাই। সংখ্যা ১২৩।",
    "tamil": "யாமறிந்த மொழிகளிலே தமிழ்மொழி போல் இனிதாவது எங்கும் காணோம்.",
    "thai": "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า ๑๒๓",
    "chinese": "天地玄黄,宇宙洪荒。日月盈昃,辰宿列张。繁體中文也要測試。",
    "japanese": "いろはにほへと ちりぬるを。カタカナと漢字、そして半角カナ。",
    "korean": "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. 한글",
    "georgian": "გთხოვთ ახლავე გაიაროთ რეგისტრაცია.",
    "armenian": "Բոլոր մարդիկ ծնվում են ազատ ու հավասար։",
    "amharic": "ሰላም ለዓለም። ፩፪፫",
    "khmer": "មនុស្សទាំងអស់កើតមកមានសេរីភាព",
    "tibetan": "བཀྲ་ཤིས་བདེ་ལེགས།",
    "gothic": "𐌰𐌱𐌲𐌳𐌴 𐍈",
    "mathematics": "∀ε>0 ∃δ>0: |x−a|<δ ⇒ |f(x)−f(a)|<ε; 𝒜 ⊂ ℝⁿ, ∑ᵢ xᵢ² ≤ 1",
}
CODE = [
    "def f(x):\n    return x * 2 if x > 0 else None\n\n\nclass A:\n\tpass\n",
    "#include <vector>\nint main() {\n  std::vector<int> v{1, 2, 3};\n  return v[0] ? 0 : 1;  // done\n}\n",
    "SELECT id, COUNT(*) FROM t WHERE a >= 10 AND b <> 'x''y' GROUP BY id;",
    "{\"a\": [1, 2.5e-3, null, true], \"b\": \"\\u00e9\\n\"}",
    "for i in $(seq 1 10); do echo \"$i\" >> out.txt; done\r\n\r\n",
    "<div class=\"x\">&nbsp;<br/></div>\n\t\t<!-- c -->\n",
    "a  b   c    d     e      f       g\n    4\n        8\n                16\n",
    "0xDEADBEEF 0b1010 1_000 1e10 .5 5. 007 192.168.0.1 2026-11-30T12:00:00Z",
]
CONVERSATIONS = [
    [("user", "What is the capital of France?")],
    [("user", "")],
    [("system", "You are terse."), ("user", "Hello!")],
    [("system", ""), ("user", "Hello!")],
    [("user", "Hi"), ("assistant", "Hello! How can I help?"), ("user", "Tell me a joke.")],
    [("system", "A"), ("user", "B"), ("assistant", "C"), ("user", "D"), ("assistant", "E")],
    [("user", "  spaces kept  \n\nand lines\n")],
    [("user", "quotes ' and \" and {{ braces }} and {% tags %} and \\ backslash")],
    [("user", "Say <|im_end|> and <|im_start|>system")],
    [("user", "\u4f60\u597d \U0001f469\u200d\U0001f680 e\u0301 \u05e9\u05dc\u05d5\u05dd")],
    [("user", "one"), ("system", "late system"), ("user", "two")],
    [("assistant", "I speak first."), ("user", "Go on.")],
    [("tool", "{\"temperature\": 21}"), ("user", "So?")],
]


def random_text(rng, length):
    """Scalar values from all planes, weighted to the places where tokenizers differ."""
    ranges = [(0x20, 0x7e)] * 6 + [(0x00, 0x1f), (0x80, 0x24f), (0x300, 0x36f), (0x370, 0x52f), (0x590, 0x6ff), (0x900, 0xdff),
                                   (0x2000, 0x206f), (0x2150, 0x218f), (0x3040, 0x30ff), (0x4e00, 0x9fff), (0xac00, 0xd7a3),
                                   (0xe000, 0xffff), (0x10000, 0x1ffff), (0x20000, 0x10ffff)]
    spaces = " \n\t\r\u00a0\u3000 "
    return "".join(rng.choice(spaces) if rng.random() < 0.2 else chr(rng.randint(*rng.choice(ranges)))
                   for _ in range(length))


def main():
    tokenizer = oracle.load_tokenizer(oracle.model_path())
    backend = tokenizer.backend_tokenizer

    rng = random.Random(20261130)
    texts = HAND_MADE + list(SCRIPTS.values()) + CODE
    pieces = list(SCRIPTS.values()) + CODE
    texts += [" ".join(rng.sample(pieces, 3)) for _ in range(20)]
    texts += ["".join(rng.choice(" \n\tab1'.,\u00e9\u4e2d") for _ in range(24)) for _ in range(150)]
    texts += [random_text(rng, rng.randint(1, 40)) for _ in range(250)]

    rows = []
    for text in texts:
        row = {"text": text, "ids": backend.encode(text, add_special_tokens=False).ids}
        backend.encode_special_tokens = True
        plain = backend.encode(text, add_special_tokens=False).ids
        backend.encode_special_tokens = False
        if plain != row["ids"]:
            row["ids_as_text"] = plain
        # The vocabulary has no token for 21 of the 256 bytes (0x04, 0x06, 0xf1 ...): they vanish without a trace.
        if backend.decode(plain, skip_special_tokens=False) != text:
            row["lossy"] = True
        rows.append(row)
    oracle.write_json(oracle.GOLDEN / "tokenizer_vectors.json", {"samples": rows})

    rows = []
    for conversation in CONVERSATIONS:
        messages = [{"role": role, "content": content} for role, content in conversation]
        for generation_prompt in (True, False):
            prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation_prompt)
            rows.append({"messages": messages, "add_generation_prompt": generation_prompt, "prompt": prompt,
                         "ids": backend.encode(prompt, add_special_tokens=False).ids})
    oracle.write_json(oracle.GOLDEN / "chatml.json", {
        "template": tokenizer.chat_template, "bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token,
        "conversations": rows})


if __name__ == "__main__":
    main()
