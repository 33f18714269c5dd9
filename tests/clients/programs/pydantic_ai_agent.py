"""pydantic-ai: an Agent over OpenAIResponsesModel."""

import asyncio
import sys

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import (
    OpenAIChatModel,
    OpenAIResponsesModel,
    OpenAIResponsesModelSettings,
)

MODEL = OpenAIResponsesModel("puppet")  # OPENAI_BASE_URL, OPENAI_API_KEY
WEATHER = (
    'Weather? [[think hm]][[call get_weather {"city": "Bonn"}]][[then]][[say It is {result}.]]'
)


class Person(BaseModel):
    name: str
    age: int


def get_weather(city: str) -> str:
    """The weather somewhere."""
    return f"rain in {city}"


async def text() -> None:
    result = await Agent(MODEL, instructions="Be brief.").run("Hello.")
    assert result.output == "Hello from the model."
    again = await Agent(MODEL).run("Again. [[say {heard}]]", message_history=result.all_messages())
    assert again.output == "2"


async def stream() -> None:
    async with Agent(MODEL).run_stream("Hello. [[think hm hm]][[say one two three]]") as result:
        pieces = [piece async for piece in result.stream_text(delta=True)]
    assert "".join(pieces) == "one two three"


async def tools() -> None:
    assert (await Agent(MODEL, tools=[get_weather]).run(WEATHER)).output == "It is rain in Bonn."


async def structured() -> None:
    """Through a tool, as is its default, and through the API's own format."""
    called = Agent(MODEL, output_type=Person)
    assert (
        await called.run('Who? [[call final_result {"name": "Ada", "age": 36}]]')
    ).output == Person(name="Ada", age=36)
    native = Agent(MODEL, output_type=NativeOutput(Person))
    assert (await native.run('Who? [[say {"name": "Ada", "age": 36}]]')).output == Person(
        name="Ada", age=36
    )


async def chain() -> None:
    settings = OpenAIResponsesModelSettings(openai_previous_response_id="auto")
    agent = Agent(MODEL, tools=[get_weather], model_settings=settings)
    first = await agent.run(WEATHER)
    assert first.output == "It is rain in Bonn."
    again = await agent.run("Again. [[say {heard}]]", message_history=first.all_messages())
    assert again.output == "2"


async def chat() -> None:
    assert (
        await Agent(OpenAIChatModel("puppet"), tools=[get_weather]).run(WEATHER)
    ).output == "It is rain in Bonn."


SCENARIOS = (text, stream, tools, structured, chain, chat)


async def main() -> None:
    for scenario in SCENARIOS:
        if sys.argv[1:] in ([], [scenario.__name__]):
            await scenario()
            print("ok", scenario.__name__, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
