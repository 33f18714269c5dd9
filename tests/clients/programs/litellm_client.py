"""LiteLLM as a client: its `responses`, and its `completion` bridged onto the Responses API."""

import asyncio
import json
import os
import sys

import litellm

litellm.api_base = os.environ["OPENAI_BASE_URL"]  # noqa: TID251  # a program of a client's user
MODEL = "openai/puppet"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
PROMPT = 'Weather? [[call get_weather {"city": "Bonn"}]][[then]][[say It is {result}.]]'


async def text() -> None:
    said = litellm.responses(model=MODEL, input="Hello.", instructions="Be brief.")
    assert said.output_text == "Hello from the model."
    found = litellm.get_responses(said.id, custom_llm_provider="openai")
    assert found.status == "completed"
    assert litellm.delete_responses(said.id, custom_llm_provider="openai").deleted is True


async def stream() -> None:
    events = await litellm.aresponses(model=MODEL, input="[[say one two three]]", stream=True)
    pieces = [event.delta async for event in events if event.type == "response.output_text.delta"]
    assert "".join(pieces) == "one two three"


async def tools() -> None:
    sent = [{"role": "user", "content": PROMPT}]
    first = litellm.responses(model=MODEL, input=sent, tools=[WEATHER])
    [called] = first.output
    answer = {"type": "function_call_output", "call_id": called.call_id, "output": "rain"}
    second = litellm.responses(
        model=MODEL, input=[answer], previous_response_id=first.id, tools=[WEATHER]
    )
    assert second.output_text == "It is rain."


async def bridged() -> None:
    """Chat in the program, Responses on the wire: with and without a stream, and with a tool."""
    model = "openai/responses/puppet"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}]
    tool = {
        "type": "function",
        "function": {key: value for key, value in WEATHER.items() if key != "type"},
    }
    asked = litellm.completion(model=model, messages=messages, tools=[tool]).choices[0].message
    [called] = asked.tool_calls
    assert json.loads(called.function.arguments) == {"city": "Bonn"}
    messages += [asked.model_dump(), {"role": "tool", "tool_call_id": called.id, "content": "rain"}]
    assert (
        litellm.completion(model=model, messages=messages, tools=[tool]).choices[0].message.content
        == "It is rain."
    )
    said = [{"role": "user", "content": "[[say one two three]]"}]
    pieces = [
        chunk.choices[0].delta.content or ""
        for chunk in litellm.completion(model=model, messages=said, stream=True)
    ]
    assert "".join(pieces) == "one two three"


async def chat() -> None:
    said = [{"role": "user", "content": "[[say one two three]]"}]
    assert (
        litellm.completion(model=MODEL, messages=said).choices[0].message.content == "one two three"
    )
    pieces = [
        chunk.choices[0].delta.content or ""
        for chunk in litellm.completion(model=MODEL, messages=said, stream=True)
    ]
    assert "".join(pieces) == "one two three"


SCENARIOS = (text, stream, tools, bridged, chat)


async def main() -> None:
    for scenario in SCENARIOS:
        if sys.argv[1:] in ([], [scenario.__name__]):
            await scenario()
            print("ok", scenario.__name__, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
