"""In which encoding the text of a file is, if it is not UTF-8."""

from io import BytesIO

import pytest

from features.retrieval.extract.encodings import decode, find_encoding
from models.files.kinds import Examination

WESTERN = {
    "fr": "Prénom;Nom;Ville\nAndré;Lefèvre;Besançon\nL'été, nous avons mangé des pâtes; 12 €.\n",
    "de": "Name;Straße;Ort\nMüller;Hauptstraße 5;Köln\nDie Größe beträgt fünf Meter. Preis: 12 €\n",
    "es": "Nombre;Dirección;País\nJosé Núñez;Calle Peña;España\n¿Cuándo llega el niño? ¡Mañana!\n",
    "pt": "Nome;Endereço;Município\nJoão Conceição;Praça São João\nA situação não está fácil.\n",
    "it": "Nome;Città;Attività\nNiccolò;Forlì;perché\nL'università è già aperta, però più cara.\n",
    "nl": "Naam;Plaats;Opmerking\nZoë;Curaçao;financiële crisis\nHij heeft geïnformeerd; € 10.\n",
    "sv": "Namn;Gata;Ort\nÅsa Öberg;Malmö\nHär är en räv som äter blåbär på ön.\n",
    "da": "Navn;Gade;By\nSøren Ågård;Nørregade\nDet er en blå cykel på øen. Børnene går.\n",
    "no": "Navn;By\nØystein Åsen;Tromsø\nDet er en blå sykkel på øya. Barna går på skole.\n",
    "fi": "Nimi;Kaupunki\nPäivi Mäkelä;Jyväskylä\nTämä on hyvää suomea, että näemme ääkköset.\n",
    "is": "Nafn;Staður\nÞórður Guðmundsson;Reykjavík\nÉg á að fara í búðina og kaupa mjólk.\n",
    "ca": "Nom;Ciutat\nNúria;València\nVàrem anar a la muntanya amb els avis, però feia fred.\n",
    "en": "Name;Note\nSmith;He said “hello” – it’s fine\nThe café costs £5 and the résumé too.\n",
}
"""Windows-1252 in each of its languages."""
OTHERS = {
    "fr, ISO 8859-15": ("iso8859-15", WESTERN["fr"]),
    "fr, Macintosh": ("mac_roman", WESTERN["fr"]),
    "de, DOS": ("cp850", WESTERN["de"].replace("€", "EUR")),
    "pl": ("cp1250", "Imię;Miasto\nŁukasz;Łódź\nWszystkie dzieci są już w szkole, a żółw idzie.\n"),
    "cs": (
        "cp1250",
        "Jméno;Město\nJiří;Plzeň\nPříliš žluťoučký kůň. Všechny děti už jsou ve škole.\n",
    ),
    "cs, ISO 8859-2": ("iso8859-2", "Příliš žluťoučký kůň. Všechny děti už jsou ve škole.\n"),
    "hu": ("cp1250", "Győző;Fő utca\nÁrvíztűrő tükörfúrógép. Minden gyerek őszintén örül.\n"),
    "tr": ("cp1254", "İbrahim;Yıldız\nÇocuklar okula gidiyor. Ağaçlar yeşil ve gökyüzü açık.\n"),
    "ru": ("cp1251", "Имя;Город\nИван;Москва\nСегодня хорошая погода, и дети идут в школу.\n"),
    "ru, KOI8-R": ("koi8-r", "Имя;Город\nИван;Москва\nСегодня хорошая погода, и дети идут.\n"),
    "ru, DOS": ("cp866", "Имя;Город\nИван;Москва\nСегодня хорошая погода, и дети идут.\n"),
    "uk": ("cp1251", "Ім'я;Місто\nІван;Київ\nСьогодні гарна погода, і діти йдуть до школи.\n"),
    "el": ("cp1253", "Όνομα;Πόλη\nΓιώργος;Αθήνα\nΤα παιδιά πηγαίνουν στο σχολείο.\n"),
    "he": ("cp1255", "שם;עיר\nדוד;ירושלים\nהיום מזג האוויר יפה והילדים הולכים לבית הספר.\n"),
    "ar": ("cp1256", "الاسم;المدينة\nالطقس جميل اليوم والأطفال يذهبون إلى المدرسة.\n"),
    "th": ("cp874", "ชื่อ;เมือง\nวันนี้อากาศดีมาก และเด็กๆ ไปโรงเรียน\n"),
    "lv": ("cp1257", "Vārds;Pilsēta\nŠodien ir jauks laiks, un bērni iet uz skolu. Ļoti labi.\n"),
    "ja": ("cp932", "名前;都市\n山田;東京\n今日は天気が良いので、子供たちは学校へ行きます。\n"),
    "ja, EUC": ("euc_jp", "名前;都市\n今日は天気が良いので、子供たちは学校へ行きます。\n"),
    "ja, ISO 2022": ("iso2022_jp", "名前;都市\n今日は天気が良いです。\n"),
    "zh": ("gb18030", "姓名;城市\n张伟;北京\n今天天气很好，孩子们去上学。价格是十二元。\n"),
    "zh, Big5": ("big5", "姓名;城市\n張偉;臺北\n今天天氣很好，孩子們去上學。價格是十二元。\n"),
    "ko": ("cp949", "이름;도시\n김철수;서울\n오늘은 날씨가 좋아서 아이들이 학교에 갑니다.\n"),
}
ROWS = "".join(f"{number};{number * 7};item {number}\n" for number in range(9000))
"""Some blocks of a table in ASCII."""


def read(content: bytes) -> str | None:
    file = BytesIO(content)
    encoding = find_encoding(file, is_html=False)
    return None if encoding is None else "".join(decode(file, encoding))


@pytest.mark.parametrize("language", WESTERN)
def test_one_line_shows_a_western_language(language: str) -> None:
    for line in WESTERN[language].splitlines():
        for text in (f"{line}\n", f"{ROWS}{line}\n", f"{line}\n{ROWS}"):
            if not line.isascii():
                assert read(text.encode("cp1252")) == text


@pytest.mark.parametrize("language", OTHERS)
def test_some_lines_show_any_language(language: str) -> None:
    encoding, lines = OTHERS[language]
    for text in (lines, lines * 400, ROWS + lines, lines.replace("\n", " ") * 400):
        assert read(text.encode(encoding)) == text


@pytest.mark.parametrize("text", ["Hi", "Привет, мир\nи дети\n", "naïve “text”\n", "Ελληνικά\n"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_needs_no_mark_in_an_alphabet(text: str, encoding: str) -> None:
    assert read(text.encode(encoding)) == text


def test_one_damaged_byte_leaves_a_file_in_utf_8() -> None:
    assert read("é, ß und ü\n".encode() * 9 + b"\xc3\n") == "é, ß und ü\n" * 9 + "\ufffd\n"


@pytest.mark.parametrize(
    ("content", "may_be_text"),
    [
        (WESTERN["fr"].encode("cp1252"), True),
        (OTHERS["ja"][1].encode("cp932"), True),
        ("名前".encode("utf-16"), True),
        ("Привет, мир\n".encode("utf-16-le"), True),
        (b"\x7fELF\x02\x01\x01" + bytes(range(256)), False),
        (b"some \0 text\n" * 9, False),
        (b"\x89PNG\r\n\x1a\n" + bytes(99), False),
    ],
)
def test_a_file_named_text_may_be_uploaded_in_any_encoding(
    content: bytes, may_be_text: bool
) -> None:
    examination = Examination()
    for start in range(0, len(content), 100):
        examination.feed(content[start : start + 100])
    assert examination.may_be_text() == may_be_text
