"""LlamaIndex: OpenAIResponses, and an agent over it.

It looks a model's context window up by name, so the name must be one it knows.
"""

import asyncio
import os
import sys

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAI, OpenAIResponses
from pydantic import BaseModel

ADDRESS = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}  # noqa: TID251  # a program of a client's user
LLM = OpenAIResponses(model="gpt-4.1-mini", **ADDRESS)
WEATHER = 'Weather? [[call get_weather {"city": "Bonn"}]][[then]][[say It is {result}.]]'


class Person(BaseModel):
    name: str
    age: int


def get_weather(city: str) -> str:
    """The weather somewhere."""
    return f"rain in {city}"


async def text() -> None:
    assert str(LLM.complete("Hello.")) == "Hello from the model."
    said = await LLM.achat(
        [
            ChatMessage(role="system", content="Be brief."),
            ChatMessage(role="user", content="Hello."),
        ]
    )
    assert said.message.content == "Hello from the model."


async def stream() -> None:
    pieces = [
        piece.delta
        async for piece in await LLM.astream_chat(
            [ChatMessage(role="user", content="[[say one two three]]")]
        )
    ]
    assert "".join(pieces) == "one two three"


async def tools() -> None:
    offered = [FunctionTool.from_defaults(fn=get_weather)]
    history = [ChatMessage(role="user", content=WEATHER)]
    asked = LLM.chat_with_tools(offered, chat_history=history)
    [called] = LLM.get_tool_calls_from_response(asked)
    assert called.tool_kwargs == {"city": "Bonn"}
    answer = ChatMessage(role="tool", content="rain", additional_kwargs={"call_id": called.tool_id})
    assert (
        LLM.chat_with_tools(offered, chat_history=[*history, asked.message, answer]).message.content
        == "It is rain."
    )


async def agent() -> None:
    weatherman = FunctionAgent(tools=[get_weather], llm=LLM, system_prompt="Look it up.")
    assert str(await weatherman.run(WEATHER)) == "It is rain in Bonn."


async def structured() -> None:
    clerk = LLM.as_structured_llm(Person)
    assert clerk.complete('Who? [[say {"name": "Ada", "age": 36}]]').raw == Person(
        name="Ada", age=36
    )


async def chain() -> None:
    llm = OpenAIResponses(model="gpt-4.1-mini", track_previous_responses=True, **ADDRESS)
    llm.chat([ChatMessage(role="user", content="One.")])
    assert (
        llm.chat([ChatMessage(role="user", content="Two. [[say {heard}]]")]).message.content == "2"
    )


async def chat() -> None:
    assert (
        str(OpenAI(model="gpt-4.1-mini", **ADDRESS).complete("Hello.")) == "Hello from the model."
    )


SCENARIOS = (text, stream, tools, agent, structured, chain, chat)


async def main() -> None:
    for scenario in SCENARIOS:
        if sys.argv[1:] in ([], [scenario.__name__]):
            await scenario()
            print("ok", scenario.__name__, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
