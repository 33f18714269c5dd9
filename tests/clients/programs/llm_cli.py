"""The `llm` command line, with this server as an extra OpenAI-compatible model."""

import os
import subprocess
import sys
from pathlib import Path

HERE = os.environ  # noqa: TID251  # a program of a client's user
HOME = Path(HERE["SCRATCH"])
MODELS = """
- model_id: backburner
  model_name: puppet
  api_base: {base_url}
  api_key_name: backburner
  responses: true
  supports_tools: true
  supports_schema: true
- model_id: backburner-chat
  model_name: puppet
  api_base: {base_url}
  api_key_name: backburner
  supports_tools: true
"""
WEATHER = """
def get_weather(city: str) -> str:
    "The weather somewhere."
    return "rain in " + city
"""


def llm(*words: str) -> str:
    command = [str(Path(sys.executable).parent / "llm"), *words]
    return subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        env={**HERE, "LLM_USER_PATH": str(HOME)},
    ).stdout.strip()


def text() -> None:
    assert (
        llm("-m", "backburner", "--no-stream", "-s", "Be brief.", "Hello.")
        == "Hello from the model."
    )


def stream() -> None:
    assert llm("-m", "backburner", "Go. [[think hm hm]][[say one two three]]") == "one two three"


def conversation() -> None:
    llm("-m", "backburner", "One. [[think hm]][[say first]]")
    assert llm("-m", "backburner", "-c", "Two. [[say {heard}]]") == "2"


def structured() -> None:
    assert (
        llm(
            "-m",
            "backburner",
            "--schema",
            "name, age int",
            'Who? [[say {"name": "Ada", "age": 36}]]',
        )
        == '{"name": "Ada", "age": 36}'
    )


def tools() -> None:
    prompt = (
        'Weather? [[think hm]][[call get_weather {"city": "Bonn"}]][[then]][[say It is {result}.]]'
    )
    assert llm("-m", "backburner", "--functions", WEATHER, prompt) == "It is rain in Bonn."


def chat() -> None:
    prompt = 'Weather? [[call get_weather {"city": "Bonn"}]][[then]][[say It is {result}.]]'
    assert llm("-m", "backburner-chat", "--functions", WEATHER, prompt) == "It is rain in Bonn."


SCENARIOS = (text, stream, conversation, structured, tools, chat)

if __name__ == "__main__":
    (HOME / "extra-openai-models.yaml").write_text(MODELS.format(base_url=HERE["OPENAI_BASE_URL"]))
    llm("keys", "set", "backburner", "--value", HERE["OPENAI_API_KEY"])
    for scenario in SCENARIOS:
        if sys.argv[1:] in ([], [scenario.__name__]):
            scenario()
            print("ok", scenario.__name__, flush=True)
