"""backburner.toml: what it may contain, what overrides it, and how each mistake is reported."""

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest

from models.config.config_file import BadSettings, Mistake
from models.config.configuration import FOREIGN_VARIABLES, build, load, unknown_variables
from models.config.routes import Routes
from models.config.settings import Settings
from models.config.values import format_size
from models.time_text import format_duration

ADDRESSES = {"DATABASE_URL": "postgresql://unused", "REDIS_URL": "redis://unused"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, and an environment that has only the two addresses."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BACKBURNER_CONFIG", raising=False)
    for name, value in ADDRESSES.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def read(folder: Path, text: str) -> Settings:
    (folder / "backburner.toml").write_text(text)
    return build()


TWO = """
[upstreams.a]
base_url = "http://a.example/v1"
[upstreams.b]
base_url = "http://b.example/v1"
"""


def test_without_a_file_the_one_upstream_of_the_environment_serves_everything(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKBURNER_UPSTREAM__BASE_URL", "http://only.example/v1")
    routes = Routes(build())
    assert list(routes.patterns) == ["*"]
    [destination] = routes.find("anything/at all")
    assert (destination.upstream.name, destination.upstream.base_url, destination.model) == (
        "default",
        "http://only.example/v1",
        "anything/at all",
    )


def test_the_file_in_the_working_directory_is_read_unless_another_one_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read(folder, "[limits]\nturns = 7").limits.turns == 7
    (folder / "other.toml").write_text('retention = "P1D"\n[limits]\nturns = 8\nfirst_token = 0.5')
    monkeypatch.setenv("BACKBURNER_CONFIG", str(folder / "other.toml"))
    settings = build()
    assert (settings.limits.turns, settings.limits.first_token) == (8, timedelta(seconds=0.5))
    assert settings.retention == timedelta(days=1)
    monkeypatch.setenv("BACKBURNER_CONFIG", "")
    assert build().limits.turns == 128, "an empty name means no file"


def test_the_environment_overrides_the_file_key_by_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKBURNER_UPSTREAMS__A__BASE_URL", "http://elsewhere.example/v1")
    monkeypatch.setenv("BACKBURNER_UPSTREAMS__A__PASSTHROUGH", "top_k, min_p")
    monkeypatch.setenv("BACKBURNER_UPSTREAMS__A__API_KEY", "12345")
    monkeypatch.setenv("BACKBURNER_LIMITS__TURNS", "9")
    settings = read(
        folder, TWO + 'max_retries = 4\n[routes]\n"*" = "a"\n[limits]\nturns = 7\noutput = 1000'
    )
    upstreams = Routes(settings).upstreams
    assert upstreams["a"].base_url == "http://elsewhere.example/v1"
    assert upstreams["a"].passthrough == ("top_k", "min_p")
    assert upstreams["a"].api_key.get_secret_value() == "12345"
    assert (upstreams["b"].max_retries, settings.limits.turns, settings.limits.output) == (
        4,
        9,
        1000,
    )
    monkeypatch.setenv("BACKBURNER_ROUTES", '{"only": ["b", {"upstream": "a", "model": "x"}]}')
    routes = Routes(build())
    assert list(routes.patterns) == ["only"], "routes of the environment replace those of the file"
    assert [
        (destination.upstream.name, destination.model) for destination in routes.find("only")
    ] == [
        ("b", "only"),
        ("a", "x"),
    ]


def test_the_file_can_name_the_variable_of_a_key_instead_of_holding_the_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_A", "sesame")
    settings = read(
        folder, '[upstreams.a]\nbase_url = "http://a.example/v1"\napi_key_env = "KEY_OF_A"'
    )
    [destination] = Routes(settings).find("any")
    assert destination.upstream.api_key.get_secret_value() == "sesame"
    assert "sesame" not in repr(settings)


@pytest.mark.parametrize(
    ("model", "ends"),
    [
        ("gpt-5", ["a as gpt-5"]),
        ("gpt-5-mini", ["b as gpt-5-mini"]),
        ("gpt-", ["a as gpt-"]),
        ("exact", ["b as other"]),
        ("Exact", ["a as Exact", "b as Exact"]),
        ("local/llama/3", ["b as llama/3"]),
        ("a.c", ["b as a.c"]),
        ("abc", ["a as abc", "b as abc"]),
        ("left-and-right", ["a as left-and-right"]),
    ],
)
def test_the_most_specific_of_several_matching_routes_wins(
    folder: Path, model: str, ends: list[str]
) -> None:
    routes = """
    [routes]
    "*" = ["a", "b"]
    "gpt-*" = "a"
    "gpt-*-mini" = "b"
    "exact" = { upstream = "b", model = "other" }
    "exac*" = "a"
    "local/*" = { upstream = "b", model = "*" }
    "a.c" = "b"
    "left-*" = "a"
    "*right" = "b"
    """
    destinations = Routes(read(folder, TWO + routes)).find(model)
    assert [f"{each.upstream.name} as {each.model}" for each in destinations] == ends


def test_a_model_that_no_route_matches_has_no_upstream(folder: Path) -> None:
    assert Routes(read(folder, TWO + '[routes]\n"gpt-*" = "a"')).find("llama") == ()


MISTAKES: dict[str, tuple[str, list[str]]] = {
    "not TOML": (
        "[upstreams.a\nx = 1",
        ["line 1: is not TOML: Expected ']' at the end of a table declaration"],
    ),
    "cut off": ('[upstreams.a]\nbase_url = "http', ["line 2: is not TOML: Unterminated string"]),
    "a key twice": (
        "[limits]\nturns = 1\nturns = 2",
        ["line 3: is not TOML: Cannot overwrite a value"],
    ),
    "an unknown group": (
        "[limit]\nturns = 1",
        ["line 1: limit: is not a setting; the nearest name is limits"],
    ),
    "a group in capitals": ("[limits]\n[Limits]", ["line 2: Limits: is not a setting"]),
    "a schema that breaks out of its quotes": (
        'database_schema = "a\\"; DROP SCHEMA public"',
        [
            (
                "line 1: database_schema: must be up to 63 of a-z, 0-9 and _, not begin with a "
                "digit or pg_, and not be information_schema"
            )
        ],
    ),
    "a schema of Postgres": (
        'database_schema = "pg_catalog"',
        [
            (
                "line 1: database_schema: must be up to 63 of a-z, 0-9 and _, not begin with a "
                "digit or pg_, and not be information_schema"
            )
        ],
    ),
    "a long schema": (
        f'database_schema = "{"a" * 64}"',
        [
            (
                "line 1: database_schema: must be up to 63 of a-z, 0-9 and _, not begin with a "
                "digit or pg_, and not be information_schema"
            )
        ],
    ),
    "an unknown key": (
        TWO + 'baseurl = "x"\n[routes]\n"*" = "a"',
        ["line 6: upstreams.b.baseurl: is not a setting; the nearest name is base_url"],
    ),
    "another type": (
        "\n[limits]\n\nturns = 'many'",
        [
            (
                "line 4: limits.turns: Input should be a valid integer, unable to parse "
                "string as an integer"
            )
        ],
    ),
    "no address": (
        "[upstreams.a]\n",
        [
            (
                "line 1: upstreams.a.base_url: must be given: the address that a client "
                "would use as base URL, with /v1"
            )
        ],
    ),
    "not a URL": (
        '[upstreams.a]\nbase_url = "a.example"',
        [
            (
                "line 2: upstreams.a.base_url: must be an http:// or https:// address "
                "without user name, query or fragment"
            )
        ],
    ),
    "an unknown API": (
        '[upstreams.a]\nbase_url = "http://a.example/v1"\napi = "soap"',
        ["line 3: upstreams.a.api: Input should be 'chat', 'responses' or 'messages'"],
    ),
    "summaries of an upstream that makes its own": (
        '[upstreams.a]\nbase_url = "http://a/v1"\napi = "responses"\nreasoning_summary = true',
        ['line 1: upstreams.a: reasoning_summary needs api = "chat"'],
    ),
    "a key variable that is not set": (
        '[upstreams.a]\nbase_url = "http://a.example/v1"\napi_key_env = "UNSET_KEY"',
        ["line 3: upstreams.a.api_key_env: the variable UNSET_KEY is not set in the environment"],
    ),
    "a name": (
        '[upstreams."A b"]\nbase_url = "http://a.example/v1"',
        [
            (
                "line 1: upstreams.A b: an upstream's name is made of small letters and "
                "digits, separated by single - or _"
            )
        ],
    ),
    "a route to nowhere": (
        TWO + '[routes]\n"*" = ["a", "c"]\n"x" = { upstream = "d" }',
        [
            "line 7: routes.*: there is no upstream 'c' (configured: a, b)",
            "line 8: routes.x: there is no upstream 'd' (configured: a, b)",
        ],
    ),
    "a route of a wrong type": (
        TWO + '[routes]\n"*" = 3\n"y" = []',
        [
            (
                "line 7: routes.*: must be an upstream's name, a table { upstream = NAME, "
                "model = NAME }, or a list of these"
            ),
            "line 8: routes.y: must not be empty",
        ],
    ),
    "a star without another": (
        TWO + '[routes]\n"x" = { upstream = "a", model = "*" }',
        ["line 7: routes.x: a * in 'model' needs exactly one * in the pattern"],
    ),
    "several and no routes": (
        TWO,
        ["not set: routes: is required when more than one upstream is configured"],
    ),
    "limits that make no sense": (
        TWO + 'concurrency = 0\nwait = "soon"\n[routes]\n"*" = "a"',
        [
            "line 6: upstreams.b.concurrency: Input should be greater than or equal to 1",
            "line 7: upstreams.b.wait: must be a duration such as 90s, 15m, 2h or 3d",
        ],
    ),
}


def lines_of_a_start(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """What the log of a process with mistakes says, as `config check` writes it."""
    with pytest.raises(SystemExit) as ended:
        load("web")
    assert ended.value.code == 2
    # What earlier tests of this process left behind may log as well.
    lines = capfd.readouterr().err.splitlines()
    mistakes = [json.loads(line) for line in lines if "configuration_mistake" in line]
    for each in mistakes:
        assert (each["event"], each["level"], each["process"]) == (
            "configuration_mistake",
            "critical",
            "web",
        )
    return [
        str(Mistake("", each["where"], each["reason"], each["line"], each["setting"]))
        for each in mistakes
    ]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_reported_with_its_line(
    folder: Path, capfd: pytest.CaptureFixture[str], mistake: str
) -> None:
    text, expected = MISTAKES[mistake]
    (folder / "backburner.toml").write_text(text)
    assert lines_of_a_start(capfd) == [
        f"{'' if line.startswith('not set') else 'backburner.toml, '}{line}" for line in expected
    ]


def test_a_terminal_shows_mistakes_as_text(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with pytest.raises(SystemExit):
        load("worker")
    assert capsys.readouterr().err == (
        "configuration: not set: BACKBURNER_UPSTREAM__BASE_URL: no upstream is configured: "
        "set this variable, or list upstreams in backburner.toml\n"
    )


def test_all_mistakes_are_reported_at_once_each_with_its_source(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKBURNER_LEASE__BEAT", "often")
    monkeypatch.setenv("BACKBURNER_UPSTREAMS__B__API_KEY", "secret")
    monkeypatch.delenv("REDIS_URL")
    with pytest.raises(BadSettings) as bad:
        read(folder, '[upstreams.a]\nbase_url = 7\n[routes]\n"*" = "c"')
    assert [(mistake.source, mistake.line) for mistake in bad.value.mistakes] == [
        ("default", None), ("environment", None), ("environment", None), ("file", 2), ("file", 4),
    ]  # fmt: skip
    report = str(bad.value)
    for words in (
        "not set: REDIS_URL: must be given",
        "BACKBURNER_LEASE__BEAT",
        "BACKBURNER_UPSTREAMS__B: upstreams.b.base_url: must be given",
    ):
        assert words in report
    assert "secret" not in report


def test_a_named_file_that_is_missing_or_not_text_is_a_mistake(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKBURNER_CONFIG", "nowhere.toml")
    with pytest.raises(
        BadSettings, match=r"^nowhere.toml: cannot be read: No such file or directory$"
    ):
        build()
    monkeypatch.delenv("BACKBURNER_CONFIG")
    (folder / "backburner.toml").write_bytes(b"[limits]\n# caf\xe9\n")
    with pytest.raises(BadSettings, match=r"^backburner.toml, line 2: is not UTF-8 text$"):
        build()


def test_a_variable_that_is_not_json_is_named_without_its_value(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKBURNER_ROUTES", "{secret")
    with pytest.raises(
        BadSettings,
        match=r"^environment: BACKBURNER_ROUTES: cannot be read: JSON is expected there$",
    ):
        build()


def test_lines_are_right_also_after_comments_strings_and_lists_over_several_lines(
    folder: Path,
) -> None:
    text = '''
retention = """P
1D""" # a text over two lines that is not a duration
[upstreams."a"] # [not.a.table]
'base_url' = "http://a.example/v1" # base_url = 1
passthrough = [
  "x", # a comment, with "quotes
  "y",
]
headers = { "x-y" = "=[", z = 1 }
query.q = "\\"]"
unknown.key = 1
'''
    with pytest.raises(BadSettings) as bad:
        read(folder, text)
    assert [(mistake.key, mistake.line) for mistake in bad.value.mistakes] == [
        ("retention", 2),
        ("upstreams.a.unknown", 12),
    ]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("0.5", 0.5), ("90s", 90), ("15m", 900), ("2h", 7200), ("3d", 259_200),
     ("500ms", 0.5), ("1h30m", 5400), ("1.5h", 5400), (" 2 h ", 7200), ("PT30M", 1800)],
)  # fmt: skip
def test_a_duration_has_a_unit_or_is_a_number_of_seconds(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, seconds: float
) -> None:
    monkeypatch.setenv("BACKBURNER_LIMITS__TURN", text)
    assert build().limits.turn == timedelta(seconds=seconds)
    monkeypatch.delenv("BACKBURNER_LIMITS__TURN")
    assert read(folder, f'[limits]\nturn = "{text}"').limits.turn == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "size"),
    [("4000000", 4_000_000), ("64MiB", 67_108_864), ("512 kib", 524_288), ("1.5GiB", 1_610_612_736),
     ("5MB", 5_000_000), ("7B", 7)],
)  # fmt: skip
def test_a_size_has_a_unit_or_is_a_number_of_bytes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, size: int
) -> None:
    monkeypatch.setenv("BACKBURNER_LIMITS__BODY", text)
    assert build().limits.body == size
    monkeypatch.delenv("BACKBURNER_LIMITS__BODY")
    assert read(folder, f'[limits]\nbody = "{text}"').limits.body == size


@pytest.mark.parametrize("text", ["2 weeks", "15M", "m", "1e400", "-5", "nan", ""])
def test_what_is_no_duration_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("BACKBURNER_LIMITS__TURN", text)
    with pytest.raises(BadSettings, match=r"BACKBURNER_LIMITS__TURN: must (be|not)"):
        read(folder, "")


def test_values_are_shown_in_their_largest_exact_unit() -> None:
    seconds = [2_592_000, 86_400, 3600, 5400, 600, 90, 10, 0.25, 0.005, 0.0005, 0]
    assert [format_duration(timedelta(seconds=each)) for each in seconds] == [
        "30d", "1d", "1h", "90m", "10m", "90s", "10s", "250ms", "5ms", "0.0005s", "0s",
    ]  # fmt: skip
    sizes = [67_108_864, 262_144, 4_000_000, 1_500, 0]
    assert [format_size(each) for each in sizes] == ["64MiB", "256KiB", "4MB", "1500B", "0B"]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("BACKBURNER_RETENTON", "BACKBURNER_RETENTION"),
        ("BACKBURNER_LIMIT__TURNS", "BACKBURNER_LIMITS__TURNS"),
        ("BACKBURNER_LIMITS__TURN_S", "BACKBURNER_LIMITS__TURNS"),
        ("BACKBURNER_WEB_GRACE", "BACKBURNER_WEB__GRACE"),
        ("backburner_loglevel", "BACKBURNER_LOG_LEVEL"),
        ("BACKBURNER_DATABASE_URL", "DATABASE_URL"),
        ("BACKBURNER_UPSTREAMS__MY_VLLM__BASEURL", "BACKBURNER_UPSTREAMS__MY_VLLM__BASE_URL"),
    ],
)
def test_an_unknown_variable_stops_a_process_with_the_nearest_name(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
    nearest: str,
) -> None:
    monkeypatch.setenv("BACKBURNER_UPSTREAM__BASE_URL", "http://only.example/v1")
    monkeypatch.setenv(name, "a secret")
    lines = lines_of_a_start(capfd)
    assert f"environment: {name}: is not a setting; the nearest name is {nearest}" in lines
    assert sum(name in line for line in lines) == 1


def test_variables_with_free_names_and_of_other_programs_are_known(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = {
        "BACKBURNER_WEB_SERVICE_HOST": "10.0.0.1",
        "BACKBURNER_WEB_SERVICE_PORT": "8000",
        "BACKBURNER_WEB_SERVICE_PORT_HTTP": "8000",
        "BACKBURNER_WEB_PORT": "tcp://10.0.0.1:8000",
        "BACKBURNER_WEB_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "BACKBURNER_WEB_PORT_8000_TCP_PROTO": "tcp",
        "BACKBURNER_PORT": "tcp://10.0.0.1:8000",
    }
    free = {
        "BACKBURNER_UPSTREAMS__MY_VLLM__BASE_URL": "http://a.example/v1",
        "BACKBURNER_UPSTREAMS__MY_VLLM__HEADERS__X_ORG": "1",
        "BACKBURNER_ROUTES__MODEL": '"my_vllm"',
        "BACKBURNER_LIMITS": '{"turns": 7}',
        "BACKBURNER_PG_BIN": "/usr/bin",
        **dict.fromkeys(FOREIGN_VARIABLES, "1"),
    }
    for name, value in (links | free).items():
        monkeypatch.setenv(name, value)
    assert read(folder, "").limits.turns == 7
    monkeypatch.setenv("BACKBURNER_WEB_PORT", "8000")
    with pytest.raises(BadSettings, match="BACKBURNER_WEB_PORT: is not a setting"):
        build()


def test_every_variable_that_this_repository_names_is_known() -> None:
    repository = Path(__file__).parents[3]
    files = [repository / "docker-compose.yml", repository / "Dockerfile", repository / "dev"]
    files += [*(repository / "bench").rglob("*.py"), *(repository / "tests" / "support").glob("*")]
    names = {
        name: "x"
        for file in files
        if file.is_file()
        for name in re.findall(r"\bBACKBURNER_[A-Z0-9_]*[A-Z0-9]\b", file.read_text())
    }
    assert len(names) > 20
    assert unknown_variables(Settings, names) == []
