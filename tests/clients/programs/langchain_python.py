"""LangChain for Python: ChatOpenAI over the Responses API, and an agent."""

import asyncio
import sys

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

LLM = ChatOpenAI(model="puppet", use_responses_api=True)  # OPENAI_BASE_URL, OPENAI_API_KEY
WEATHER = (
    'Weather? [[think hm]][[call get_weather {"city": "Bonn"}]][[then]][[say It is {result}.]]'
)


class Person(BaseModel):
    name: str
    age: int


@tool
def get_weather(city: str) -> str:
    """The weather somewhere."""
    return f"rain in {city}"


async def text() -> None:
    said = LLM.invoke([("system", "Be brief."), ("human", "Hello.")])
    assert said.text == "Hello from the model."
    assert said.usage_metadata["total_tokens"] == 18


async def stream() -> None:
    pieces = [
        chunk.text async for chunk in LLM.astream("Hello. [[think hm hm]][[say one two three]]")
    ]
    assert "".join(pieces) == "one two three"


async def tools() -> None:
    for llm in (
        LLM,
        ChatOpenAI(model="puppet", use_responses_api=True, output_version="responses/v1"),
    ):
        bound = llm.bind_tools([get_weather])
        messages = [HumanMessage(WEATHER)]
        asked = bound.invoke(messages)
        messages += [asked, get_weather.invoke(asked.tool_calls[0])]
        assert bound.invoke(messages).text == "It is rain in Bonn."


async def agent() -> None:
    result = await create_agent(LLM, [get_weather]).ainvoke({"messages": [("human", WEATHER)]})
    assert result["messages"][-1].text == "It is rain in Bonn."


async def structured() -> None:
    assert LLM.with_structured_output(Person).invoke(
        'Who? [[say {"name": "Ada", "age": 36}]]'
    ) == Person(name="Ada", age=36)


async def chain() -> None:
    first = LLM.invoke("One.")
    assert (
        LLM.invoke("Two. [[say {heard}]]", previous_response_id=first.response_metadata["id"]).text
        == "2"
    )
    chained = ChatOpenAI(model="puppet", use_previous_response_id=True)
    messages = [HumanMessage("One."), chained.invoke("One."), HumanMessage("Two. [[say {heard}]]")]
    assert chained.invoke(messages).text == "2"


async def encrypted() -> None:
    """Nothing is stored; the thoughts come back sealed."""
    kept = {"store": False, "include": ["reasoning.encrypted_content"]}
    for version in ("v0", "responses/v1", "v1"):
        bound = ChatOpenAI(
            model="puppet", use_responses_api=True, output_version=version, **kept
        ).bind_tools([get_weather])
        messages = [HumanMessage(WEATHER)]
        asked = bound.invoke(messages)
        messages += [asked, get_weather.invoke(asked.tool_calls[0])]
        assert bound.invoke(messages).text == "It is rain in Bonn."


async def chat() -> None:
    llm = ChatOpenAI(model="puppet")
    assert "".join(chunk.text for chunk in llm.stream("[[say one two three]]")) == "one two three"
    assert llm.with_structured_output(Person).invoke(
        'Who? [[say {"name": "Ada", "age": 36}]]'
    ) == Person(name="Ada", age=36)


SCENARIOS = (text, stream, tools, agent, structured, chain, encrypted, chat)


async def main() -> None:
    for scenario in SCENARIOS:
        if sys.argv[1:] in ([], [scenario.__name__]):
            await scenario()
            print("ok", scenario.__name__, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
