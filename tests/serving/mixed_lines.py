"""Lines in many languages and worse, and a vocabulary that knows a part of them."""

import random
import unicodedata

_PHRASES = (
    "The lamp was lit before the ship came in.",
    "It's 5 o'clock; she hasn't read pp. 12-14 (yet)!",
    "Der Zug fährt über die Brücke, größer als je zuvor.",
    "Où est passée l'élève naïve ?",
    "¿Dónde está la biblioteca?",
    "등대의 불빛이 바다를 비추었다.",
    unicodedata.normalize("NFD", "할머니께서 편지를 쓰셨어요."),
    "灯塔在夜里照亮了海面。",
    "灯台の光が海をてらした。カタカナも。",
    "Маяк освещал тёмное море.",
    "Ο φάρος φώτιζε τη θάλασσα. ΣΑΣ",
    "أضاء المصباح البحر",
    "המגדלור האיר את הים",
    "दीपक ने समुद्र को रोशन किया।",
    "แสงไฟส่องทะเล",
    "İstanbul'da ışık söndü.",
    "émigré e\u0301migre\u0301 \u0301 a\u0300\u0316",
    "👩‍🔬 saw 🎆🎇 at 23:59 ©™ ½ ﬁre ㎏",
    "tab\there  two\u00a0spaces\u3000wide\u200bzero\ufeffwidth",
    "control\x07char \x00 and \ufffd",
    "x" * 120,
    "http://example.org/a?b=c&d=%20#e",
    "",
    "   ",
    "[MASK] [CLS] and [SEP] are words here",
    "~!@#$%^&*()_+{}|:\"<>?`-=[]\\;',./",
)


def mixed_lines(count: int) -> list[str]:
    """The same lines every time; the first ones are the phrases themselves."""
    rng = random.Random(7)
    lines = list(_PHRASES)
    while len(lines) < count:
        lines.append(rng.choice((" ", " ", "", "\n")).join(rng.choices(_PHRASES, k=rng.choice((1, 2, 2, 3, 5, 9)))))
    return lines[:count]


def mixed_vocab() -> list[str]:
    """Special tokens, a part of the words, and most of the characters."""
    text = " ".join(_PHRASES)
    text += unicodedata.normalize("NFD", text.lower())
    words = sorted({word for word in text.split() if word.isalpha() and len(word) < 9})
    chars = sorted({char for char in text if not char.isspace() and char.isprintable()})
    # Every seventh is left out, so that there are unknown words.
    chars = [char for number, char in enumerate(chars) if number % 7 or char.isascii()]
    continued = [f"##{char}" for char in chars if char.isalnum()]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return list(dict.fromkeys([*special, *words[::2], *chars, *continued]))
