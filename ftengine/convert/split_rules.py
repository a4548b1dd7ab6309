"""How byte-level tokenizers cut text before merging, by the names that GGUF files give the rules.

The regular expressions are those of the models' own tokenizer.json.
"""

from __future__ import annotations

from dataclasses import dataclass

_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|" + _ENDS
_PATHS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _ENDS
_LLAMA3 = rf"{_SHORT}|{_LEAD}\p{{L}}+|\p{{N}}{{1,3}}|{_SIGNS}"
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = rf"{_SHORT}|{_LEAD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_ENDS}"
_CASED = (f"{_LEAD}{_UPPER}*{_LOWER}+", f"{_LEAD}{_UPPER}+{_LOWER}*")
_GPT4O = "|".join((*(word + _SHORT + "?" for word in _CASED), r"\p{N}{1,3}", _PATHS))
_COHERE_NUMBERS = r"\d{1,3}(?=(?:\d{3})*\b)"
_TEKKEN = "|".join((*_CASED, r"\p{N}", _PATHS))
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|" + _LEAD + r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_EXAONE = (
    rf"{_SHORT}|{_LEAD}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_HAN = r"[\p{Han}]+"
_NO_HAN = r"&&[^\p{Han}]]"
KIMI_SPLIT = "|".join(
    (
        _HAN,
        f"{_LEAD}{_UPPER[:-1]}{_NO_HAN}*{_LOWER[:-1]}{_NO_HAN}+{_SHORT}?",
        f"{_LEAD}{_UPPER[:-1]}{_NO_HAN}+{_LOWER[:-1]}{_NO_HAN}*{_SHORT}?",
        r"\p{N}{1,3}",
        _SIGNS,
    )
)
"""Chinese characters apart from all other letters."""
_DEEPSEEK_LETTERS = """
    41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386
    388-38a 38c 38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba
    1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57
    1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb
    1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128 212a-212d
    212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3
    a640-a66d a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a
    ff41-ff5a 10400-1044f 104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df
    1e900-1e943"""
_DEEPSEEK_SIGNS = "21-2f 3a-7e ff01-ff0f ff1a-ff5e 2018-201f 3000-3002"


def _class(ranges: str) -> str:
    """A character class out of code points and ranges of them."""
    words = (word.split("-") for word in ranges.split())
    return "".join("-".join(f"\\x{{{point}}}" for point in word) for word in words)


_DEEPSEEK = (
    r"[\r\n]",
    rf"\s?[{_class(_DEEPSEEK_LETTERS)}]+",
    rf"\s?[{_class(_DEEPSEEK_SIGNS)}]+",
    r"\s+$",
    f"[{_class('4e00-9fa5 800-4e00 ac00-d7ff')}]+",
    r"\p{N}",
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _ENDS,
)

_AFMOE_SCRIPTS = (
    "4e00-9fff 3400-4dbf 8c48-faff 3040-309f 30a0-30ff ff65-ff9f 2f00-2fdf e40-e7f e80-eff"
    " 1780-17ff 1000-109f aa60-aa7f a9e0-a9ff ac00-d7af 1100-11ff"
)
_AFMOE = (
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
    f"[{_class(_AFMOE_SCRIPTS)}]+",
    _DEEPSEEK3[-1],
)
"""Numbers in groups of three from their end; scripts without spaces apart from all others."""


@dataclass(frozen=True)
class PreTokenizer:
    """One rule under all its names. splits: one after the other, none for the one of GPT-2.

    adds_bos: texts start with bos in files that do not say.
    """

    names: tuple[str, ...]
    splits: tuple[str, ...] = ()
    single_digits: bool = False
    is_nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False


PRE_TOKENIZERS: tuple[PreTokenizer, ...] = (
    PreTokenizer(("gpt-2", "default", "")),
    PreTokenizer(("smollm", "refact"), single_digits=True),
    PreTokenizer(
        ("llama-bpe", "llama3", "llama-v3", "lfm2"), (_LLAMA3,), ignore_merges=True, adds_bos=True
    ),
    PreTokenizer(("glm4", "chatglm-bpe", "dbrx"), (_LLAMA3,)),
    PreTokenizer(("gpt-4o", "minimax-m2", "llama4"), (_GPT4O,)),
    PreTokenizer(("qwen2",), (_QWEN2,), is_nfc=True),
    PreTokenizer(("qwen35",), (_QWEN35,), is_nfc=True),
    PreTokenizer(("hunyuan", "solar-open"), (_QWEN2,)),
    PreTokenizer(("tiny_aya", "cohere2moe"), (_COHERE_NUMBERS, _GPT4O)),
    PreTokenizer(("tekken", "pixtral"), (_TEKKEN,), ignore_merges=True, adds_bos=True),
    PreTokenizer(("deepseek-llm",), _DEEPSEEK),
    PreTokenizer(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK3),
    PreTokenizer(("afmoe",), _AFMOE),
    PreTokenizer(("kimi-k2",), (KIMI_SPLIT,), ignore_merges=True),
    PreTokenizer(("bailingmoe", "bailingmoe2"), (_BAILING,)),
    PreTokenizer(("exaone-moe",), (_EXAONE,)),
)
