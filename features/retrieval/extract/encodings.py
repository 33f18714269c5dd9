"""The encoding of text that is not UTF-8. From before Unicode: the one in which it looks most like
text of one of the encoding's languages.

A text is judged by its characters beyond ASCII. Each has a likelihood in a language, by its rank
among the language's letters; this table is all that is known of a language. Detectors that know
more encodings take Western European text for Cyrillic, Baltic or Macintosh text
(docs/file-kinds.md).
"""

import codecs
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import BinaryIO, Final

from models.files.kinds import CONTROLS, wide_encoding

_LETTERS: Final = {
    "ar": "اليمنرتوبعدسفهكقحجأةشطصزخضذثىغإظئءؤآ",
    "be": "аніыесртоклядвмупьяйзгбўчцхжшёюэф",
    "bg": "аеоинтрсвлкдпмзябуъгчщжцхшюйфь",
    "ca": "éàíèóòçúïüñ·",
    "cs": "íáěéčřžýšůúňťďóü",
    "da": "øåæéü",
    "de": "üäößé",
    "el": "αοιετσνηυρπκμλςωδάγίέόχήύφώθβξζψϊΐϋΰ",
    "en": "éèïñöçôüêâ",
    "es": "óíáéñúü",
    "et": "äõüöšž",
    "fi": "äöåé",
    "fr": "éàèêçôîâûùïœëüæ",
    "ga": "áíéóú",
    "he": "יוהלאמרתבשעןםנקדחפטכגצסזךףץ",
    "hr": "čšžćđ",
    "hu": "áéöőóíüúű",
    "is": "áðíþóúöýéæ",
    "it": "èàùòìéî",
    "lt": "ėšžųįąčūęé",
    "lv": "āēīšņļūģžčķ",
    "nl": "ëéïèöüê",
    "no": "øåæéòôü",
    "pl": "łąężóśćźń",
    "pt": "ãçáéíóêõúâàôü",
    "ro": "ăîşţâșțé",
    "ru": "оеаинтсрвлкмдпуяыьгзбчйхжшюцщэфъё",
    "sk": "áíéčžšýúťľôňďäóĺŕ",
    "sl": "čšž",
    "sq": "ëç",
    "sr": "аиоенртсвкудјмлпзгбчцшжћхфђњљџ",
    "sv": "äåöéü",
    "th": "านรอกเงมยลวดท่สต้ะปีบคหิแจพชใขไ็โูุผซถึณศธัญภ์ฟฉษื๊",
    "tr": "ıişğüçöâî",
    "uk": "оанивіетрслкдмпяузьбгйчхцжїюєшщфґ",
}
"""A language -> its letters beyond ASCII, the most frequent first."""
_WESTERN: Final = "fr de es pt it nl sv da no fi is ca en ga sq et"
_CENTRAL: Final = "pl cs sk hu ro hr sl"
_CYRILLIC: Final = "ru uk bg sr be"
_ENCODINGS: Final = (
    ("cp1252", _WESTERN, 0.0),
    ("cp1250", _CENTRAL, -0.5),
    ("cp1251", _CYRILLIC, -0.5),
    ("cp1253", "el", -0.5),
    ("cp1254", "tr", -0.5),
    ("cp1255", "he", -0.5),
    ("cp1256", "ar", -0.5),
    ("cp1257", "lt lv et", -1.0),
    ("cp874", "th", -0.5),
    ("iso8859-15", _WESTERN, -0.6),
    ("iso8859-2", _CENTRAL, -1.0),
    ("iso8859-5", _CYRILLIC, -2.0),
    ("iso8859-7", "el", -1.0),
    ("koi8-r", "ru", -1.0),
    ("koi8-u", "uk", -1.5),
    ("cp850", _WESTERN, -3.0),
    ("cp852", _CENTRAL, -4.0),
    ("cp866", "ru", -2.0),
    ("mac_roman", _WESTERN, -3.5),
)
"""An encoding of one byte a character, its languages, and how likely it is by itself: the logarithm
of a probability, as everywhere here."""
_QUOTES: Final = frozenset("’“”„«»–…\u00a0")
_SIGNS: Final = _QUOTES | frozenset("‘‚‹›—•€£§°¿¡·ºª®©™²³½¼¾±×%‰†№¹\u00ad")
"""What text has beside letters."""
_WORDS: Final = frozenset("àáåéèêíìóòôöøаиоувксяіїæ")
"""Letters that are words."""

_UNKNOWN_LETTER: Final = math.log(0.002)
_MISPLACED: Final = math.log(0.0005)
"""A sign inside of a word, a capital after a small letter, a control character."""
_SIGN: Final = math.log(0.03)
_QUOTE: Final = math.log(0.1)
_ALONE: Final = math.log(0.1)
"""A letter that is no part of a word."""
_HIGH: Final = re.compile(r"[^\x00-\x7f]")
_HIGH_BYTE: Final = re.compile(rb"[\x80-\xff]")

_COMMON: Final = -6.5
_RARE: Final = -11.0
_UNUSUAL: Final = -15.0
"""Of a character of two bytes or more."""
_MANY: Final = 32
_LEAST: Final = -4.9
"""Of a byte, in a text with many."""


@dataclass(frozen=True, slots=True)
class _Wide:
    """An encoding of East Asia."""

    name: str
    trail: int
    """The second byte of most characters is not below."""
    classes: tuple[tuple[int, int, float], ...]
    """First bytes, from and to, and the likelihood of a character that has one."""

    def judge(self, sample: bytes) -> float:
        """How likely the text is."""
        if (text := _decoded(sample, self.name)) is None:
            return -math.inf
        counts = Counter(_HIGH.findall(text))
        if not counts:  # the only one is cut off
            return -math.inf
        return sum(count * self._likelihood(letter) for letter, count in counts.items())

    def _likelihood(self, letter: str) -> float:
        encoded = letter.encode(self.name)
        if len(encoded) != 2 or encoded[1] < self.trail:
            return _UNUSUAL
        lead = encoded[0]
        return next((value for first, last, value in self.classes if first <= lead <= last), _RARE)


_WIDE: Final = (
    _Wide("gb18030", 0xA1, ((0xA1, 0xA3, -6.0), (0xB0, 0xD7, _COMMON))),
    _Wide("big5", 0x40, ((0xA1, 0xA3, -6.0), (0xA4, 0xC6, _COMMON))),
    _Wide("cp949", 0xA1, ((0xA1, 0xA3, -6.0), (0xB0, 0xC8, -5.8))),
    # punctuation, hiragana, katakana, and the more frequent of two sets of other characters
    _Wide(
        "euc_jp",
        0xA1,
        ((0xA1, 0xA3, -5.0), (0xA4, 0xA4, -3.5), (0xA5, 0xA5, -4.5), (0xB0, 0xCF, -7.0)),
    ),
    _Wide(
        "cp932",
        0x40,
        ((0x81, 0x81, -5.0), (0x82, 0x82, -3.5), (0x83, 0x83, -4.5), (0x88, 0x97, -7.0)),
    ),
)


def legacy_encoding(sample: bytes) -> str | None:
    """Python's name of the encoding of some lines that are not all ASCII; None if they look like no
    text in any of these."""
    if b"\x1b" in sample and not _HIGH_BYTE.search(sample):
        return "iso2022_jp"
    judged = [
        *((wide.judge(sample), wide.name) for wide in _WIDE),
        *((_judge(sample, *encoding), encoding[0]) for encoding in _ENCODINGS),
    ]
    value, name = max(judged)
    high = len(_HIGH_BYTE.findall(sample))
    return None if high >= _MANY and value < high * _LEAST else name


def _judge(sample: bytes, encoding: str, languages: str, prior: float) -> float:
    """How likely the text is in the likeliest of these languages."""
    if (text := _decoded(sample, encoding)) is None:
        return -math.inf
    letters: Counter[str] = Counter()
    value = prior
    for place in (found.start() for found in _HIGH.finditer(text)):
        letter, before, after = text[place], text[place - 1 : place], text[place + 1 : place + 2]
        if _is_letter(letter, before):
            letters[letter.lower()] += 1
            if letter.lower() not in _WORDS and not (before.isalpha() or after.isalpha()):
                value += _ALONE
        else:
            value += _judge_sign(letter, before, after)
    return value + max(
        sum(count * ranks.get(letter, _UNKNOWN_LETTER) for letter, count in letters.items())
        for ranks in map(_likelihoods, languages.split())
    )


def _decoded(sample: bytes, encoding: str) -> str | None:
    """The text, whose last character may be cut off; None if it is not in this encoding."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(sample)
    except UnicodeError:
        return None


def _is_letter(letter: str, before: str) -> bool:
    """Whether it is one at its place: words have no capitals after small letters."""
    if letter in "ªº" or not (letter.isalpha() or unicodedata.combining(letter)):
        return False
    return not (letter.isupper() and before.islower())


def _judge_sign(sign: str, before: str, after: str) -> float:
    if sign in _QUOTES and not (sign == "’" and (not before or before.isspace())):
        return _QUOTE
    is_inside = before.isalpha() and after.isalpha() and sign not in "·\u00ad"
    return _SIGN if sign in _SIGNS and not is_inside else _MISPLACED


@cache
def _likelihoods(language: str) -> dict[str, float]:
    """Letter -> the logarithm of its share."""
    weights = {letter: 1 / (rank + 1.5) for rank, letter in enumerate(_LETTERS[language])}
    whole = sum(weights.values())
    return {letter: math.log(weight / whole) for letter, weight in weights.items()}


_BLOCK = 64 * 1024
_SAMPLE = 4 * 1024
"""Bytes that show the encoding."""
_BEFORE = 60
_NOT_ASCII = re.compile(rb"[\x80-\xff\x1b]")
_FEW = 10
"""Characters of UTF-8 for each one that is damaged."""
_DECLARED = re.compile(rb"""<meta[^>]{0,200}charset\s*=\s*["']?([a-zA-Z0-9_-]{3,20})""")
_TEXT_ENCODINGS = re.compile(
    r"(iso-?8859-\d+|(windows-|cp)125\d|koi8-[ru]|gb2312|gbk|gb18030|big5|shift_jis|euc-jp"
    r"|iso-2022-jp|euc-kr|macintosh|us-ascii)"
)
"""Encodings that a page may declare. Python knows others, which unpack."""


def find_encoding(file: BinaryIO, *, is_html: bool) -> str | None:
    """The encoding of a file that is not UTF-8; None if it is no text. Reads from the beginning,
    and leaves the file there."""
    head = file.read(_BLOCK)
    file.seek(0)
    if (wide := wide_encoding(head)) is not None:
        return wide
    if is_html and (declared := _DECLARED.search(head[:4096])) is not None:
        name = declared[1].decode().lower()
        if _TEXT_ENCODINGS.fullmatch(name):
            return name
    sample = _sample(file)
    file.seek(0)
    if sample is None:
        return None
    return "utf-8-sig" if _is_damaged_utf8(sample) else legacy_encoding(sample)


def decode(file: BinaryIO, encoding: str) -> Iterator[str]:
    """The file's text, with U+FFFD for what is not in this encoding."""
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    while block := file.read(_BLOCK):
        yield decoder.decode(block)
    yield decoder.decode(b"", True)


def _is_damaged_utf8(sample: bytes) -> bool:
    """Whether nearly all that is not ASCII is UTF-8: a line was cut, or two files were joined."""
    high = [letter for letter in sample.decode(errors="replace") if not letter.isascii()]
    return len(high) > _FEW * high.count("\ufffd")


def _sample(file: BinaryIO) -> bytes | None:
    """Some of the lines that are not all ASCII; None if the file has bytes that no text has."""
    sample, line = bytearray(), b""
    while block := file.read(_BLOCK):
        if CONTROLS.search(block):
            return None
        if len(sample) < _SAMPLE:
            *lines, line = (line + block).split(b"\n")
            if len(line) > _BLOCK:
                lines, line = [*lines, line], b""
            for each in lines:
                sample += _shown(each)
    return bytes((sample + _shown(line))[:_SAMPLE])


def _shown(line: bytes) -> bytes:
    """Where a line is not ASCII any more, with some of what is before; empty if it is all ASCII."""
    first = _NOT_ASCII.search(line)
    if first is None:
        return b""
    start = max(0, first.start() - _BEFORE)
    return line[start : start + _SAMPLE] + b"\n"
