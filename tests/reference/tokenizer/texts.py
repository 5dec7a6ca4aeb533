"""Texts that find what is wrong with a tokenizer: written ones, and random ones from a seed."""
import random

# One a line, in Python's escapes.
WRITTEN = r"""
Hello world
The quick brown fox jumps over the lazy dog.
I'm you're he's she'll they'd we've don't can't it's
I'M YOU'RE HE'S SHE'LL 'tis 'Twas rock'n'roll o'clock
don\u2019t it\u2019s \u2018quoted\u2019 \u201cdouble\u201d
'' ''' 's's 't 'x 're're 'l 'll'll
def f(x):\n\treturn x ** 2  # square\n\n\nclass A(B):\n    def __init__(self):\n        self.x = {'a': [1, 2, 3]}\n
for (int i = 0; i < n; i++) {\n\ta[i] += b[i]->c;\n}\r\n
#include <stdio.h>\n#define MAX(a,b) ((a)>(b)?(a):(b))
{"name": "get_weather", "arguments": {"city": "S\u00e3o Paulo", "days": 3, "metric": true}}
[{"role": "user", "content": "Hi"}]
https://example.com/a/b?c=d&e=f#g user@example.org C:\\dir\\file.txt
SELECT * FROM t WHERE a >= 10 AND b != 'x';
0 1 12 123 1234567890 3.14159 -42 1e-9 0xDEADBEEF 1,000,000
2024-01-31T12:00:00Z v1.2.3 #42 50% $19.99 \u20ac5 \u00a3 \u00a5
\x20 leading spaces
trailing spaces  \x20
a  b   c    d     e
\t\ttabs\t and\t \tspaces \t\n
\n\n\n\n
\r\r\n\n\r
\x20\n \n  \n   x
\x20\x20\x201\x20\x20two\x20\x203
a\u00a0b\u00a0\u00a0c \u00a0 d
a\u2028b\u2029c \u2028 \u2029
\u0085a\u0085 b\u1680c\u2000\u2001\u2002\u2003\u2009\u200a\u202f\u205f\u3000d
zero\u200bwidth\u200cjoin\u200d\ufeff\u2060
\u4f60\u597d\uff0c\u4e16\u754c\uff01\u4eca\u5929\u5929\u6c14\u600e\u4e48\u6837\uff1f
\u3053\u3093\u306b\u3061\u306f\u4e16\u754c\u3001\u30ab\u30bf\u30ab\u30ca\uff76\uff80\uff76\uff85
\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4 \u1112\u1161\u11ab
\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac
\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 \u0660\u0661\u0662\u0663 \u200f\u200e\u202b\u202c
\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd \u05b0\u05b1
\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e \u0967\u0968\u0969
\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01 \u0e51\u0e52\u0e53
\u0b95\u0bcd \u0be7\u0be8 \u1040\u1041 \u17e0\u17e1 \u0f20\u0f21
e\u0301 \u00e9 n\u0303 \u00f1 a\u0300\u0301\u0302\u0303 Z\u0351\u036b\u0343
\u2160\u2167\u216f \u00bd\u00bc\u00b2\u00b3\u00b9 \u2460\u2473 \u3007\u3021 \U0001d7d8\U0001d7ff \U00010107
\U0001f600\U0001f602\U0001f923 \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f3\ufe0f\u200d\U0001f308
\U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea \u2764\ufe0f 1\ufe0f\u20e3
\u2192 \u21d2 \u2200x\u2208\u211d: x\u00b2\u22650 \u222b\u2211\u221a \u2248\u2260\u2264
\u2500\u2502\u250c\u2588\u2591 \u2605\u2606 \u266b
\x00 \x01\x02\x03\x04\x05\x06\x07\x08 \x0b\x0c \x0e\x0f\x10 \x13\x14\x16\x1b[31m\x1d\x1e\x1f \x7f
\x80\x81\x84\x86\x9f \u00ad
\ufffd \ufffe \uffff \U0001ffff \U0010ffff \ue000 \U000f0000
\u0378 \u0558 \u1c89 \u1c8a \ua7cb \U000105c0 \U00010d4a \U00011de0 \U00011de9x \U00016ff4 \U00016ff6
<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n
<|im_start|><|im_end|><|endoftext|>
<|im_start <|im_start| |im_start|> <<|im_end|>> <|im_end|>x 1<|im_end|>2
<repo_name>a/b<file_sep>c.py<|endoftext|> <reponame> <filename>x<gh_stars>1
text <|im_end|> text\u00a0<|im_end|>\u00a0 <empty_output>
_a_ __b__ a_b_c a-b-c a.b.c a/b/c a+b=c; x<y>z & | ^ ~ ! @ # % ( ) [ ] { }
===== ----- ***** ##### ..... ,,,,, !!!!! ????? ~~~~~ `````
antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis
HTTPServerRequestHandler getElementById snake_case_name SCREAMING_SNAKE camelCase9Name
""".split("\n")[1:-1]

RANGES = [
    (0x0, 0x7F), (0x80, 0x24F), (0x250, 0x5FF), (0x600, 0xDFF), (0xE00, 0x1FFF), (0x2000, 0x2BFF), (0x2C00, 0x33FF),
    (0x3400, 0x9FFF), (0xA000, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x1FFFF), (0x20000, 0x10FFFF),
]  # fmt: skip


def written():
    return [t.encode().decode("unicode_escape") for t in WRITTEN] + [""]


def character(r):
    k = r.random()
    if k < 0.25:
        return chr(r.randrange(32, 127))
    if k < 0.4:
        return " "
    if k < 0.45:
        return r.choice("\n\t\r\u00a0\u2028 '")
    while True:
        c = r.randint(*r.choice(RANGES))
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def random_text(r, words):
    k = r.random()
    if k < 0.4:
        return "".join(character(r) for _ in range(r.randrange(0, 40)))
    if k < 0.9:
        return "".join(r.choice(words) + r.choice(["", " ", " ", "  ", "\n", "\n\n", "   "]) for _ in range(r.randrange(1, 12)))
    return r.choice(["a", "ab", "=", "-", " ", "\n", "0", "\u00e9", "ha", "the"]) * r.randrange(1, 120) + character(r)


def randoms(seed, n):
    r = random.Random(seed)
    words = [w for t in written() for w in t.split(" ") if w]
    return [random_text(r, words) for _ in range(n)]
