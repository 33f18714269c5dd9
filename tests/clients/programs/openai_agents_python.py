"""The OpenAI Agents SDK for Python: tools, a handoff, sessions, a stream, output of a shape, a
guardrail, hosted MCP.
"""

import asyncio
import base64
import os
import sys

from agents import (
    Agent,
    ApplyPatchTool,
    Computer,
    ComputerTool,
    HostedMCPTool,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIConversationsSession,
    Runner,
    ShellTool,
    SQLiteSession,
    function_tool,
    responses_websocket_session,
    set_tracing_disabled,
)
from agents.editor import ApplyPatchResult
from agents.items import MCPApprovalRequestItem
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent
from openai.types.shared import Reasoning
from pydantic import BaseModel

set_tracing_disabled(disabled=True)
MODEL = "puppet"
WEATHER = (
    'Weather? [[call get_weather {"city": "Bonn"}]][[call get_weather '
    '{"city": "Ulm"}]][[then]][[say It is {result}.]]'
)


class Person(BaseModel):
    name: str
    age: int


@function_tool
def get_weather(city: str) -> str:
    """The weather somewhere."""
    return f"rain in {city}"


async def tools() -> None:
    agent = Agent(name="Weatherman", instructions="Look it up.", model=MODEL, tools=[get_weather])
    assert (await Runner.run(agent, WEATHER)).final_output == "It is rain in Ulm."


async def stream() -> None:
    agent = Agent(name="Weatherman", model=MODEL, tools=[get_weather])
    result = Runner.run_streamed(agent, WEATHER)
    deltas = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent)
    ]
    assert "".join(deltas) == result.final_output == "It is rain in Ulm."


async def thinking() -> None:
    """Reasoning items go back with the calls they led to, stored or not."""
    prompt = (
        'Weather? [[think hm hm]][[call get_weather {"city": "Bonn"}]][[then]][[think so]][[say '
        "It is {result}.]]"
    )
    for settings in (
        ModelSettings(reasoning=Reasoning(effort="low", summary="auto")),
        ModelSettings(
            store=False,
            reasoning=Reasoning(effort="low"),
            response_include=["reasoning.encrypted_content"],
        ),
    ):
        agent = Agent(name="Thinker", model=MODEL, tools=[get_weather], model_settings=settings)
        assert (await Runner.run(agent, prompt)).final_output == "It is rain in Bonn."


async def handoff() -> None:
    poet = Agent(name="Poet", instructions="Write.", model=MODEL)
    desk = Agent(name="Desk", instructions="Send on.", model=MODEL, handoffs=[poet])
    result = await Runner.run(
        desk, "A poem. [[call transfer_to_poet {}]][[then]][[say Roses are red.]]"
    )
    assert (result.final_output, result.last_agent.name) == ("Roses are red.", "Poet")


async def session() -> None:
    memory = SQLiteSession("one")
    agent = Agent(name="Memory", model=MODEL, tools=[get_weather])
    await Runner.run(agent, WEATHER, session=memory)
    result = await Runner.run(agent, "How often did I ask? [[say {heard}]]", session=memory)
    assert result.final_output == "2"


async def chain() -> None:
    agent = Agent(name="Chain", model=MODEL, tools=[get_weather])
    first = await Runner.run(agent, WEATHER, auto_previous_response_id=True)
    second = await Runner.run(
        agent, "Again. [[say {heard}]]", previous_response_id=first.last_response_id
    )
    assert second.final_output == "2"


async def structured() -> None:
    agent = Agent(name="Clerk", model=MODEL, output_type=Person)
    assert (
        await Runner.run(agent, 'Who? [[say {"name": "Ada", "age": 36}]]')
    ).final_output == Person(name="Ada", age=36)


async def hosted_mcp() -> None:
    """A tool that needs approval: the run stops, is approved, and goes on."""
    server = {
        "type": "mcp",
        "server_label": "town",
        "server_url": os.environ["MCP_URL"],  # noqa: TID251  # a program of a client's user
        "require_approval": "always",
    }
    agent = Agent(name="Townsman", model=MODEL, tools=[HostedMCPTool(tool_config=server)])
    first = await Runner.run(
        agent, 'Weather? [[call weather {"city": "Bonn"}]][[then]][[say It is {result}.]]'
    )
    [asked] = [item for item in first.new_items if isinstance(item, MCPApprovalRequestItem)]
    assert asked.raw_item.name == "weather"
    state = first.to_state()
    [interruption] = first.interruptions
    state.approve(interruption)
    second = await Runner.run(agent, state)
    assert "degrees" in second.final_output, second.final_output


async def conversation() -> None:
    """The server keeps what was said: through a session, and through an id."""
    memory = OpenAIConversationsSession()
    agent = Agent(name="Memory", model=MODEL, tools=[get_weather])
    await Runner.run(agent, WEATHER, session=memory)
    assert (await Runner.run(agent, "Again. [[say {heard}]]", session=memory)).final_output == "2"
    assert len(await memory.get_items()) == 8
    await memory.pop_item()
    kept = (await AsyncOpenAI().conversations.create()).id
    await Runner.run(agent, WEATHER, conversation_id=kept)
    assert (
        await Runner.run(agent, "Again. [[say {heard}]]", conversation_id=kept)
    ).final_output == "2"
    await memory.clear_session()


async def client_tools() -> None:
    """What the SDK runs for the model besides functions."""

    async def execute(_request: object) -> str:
        return "out"

    class Editor:
        def create_file(self, _operation: object) -> ApplyPatchResult:
            return ApplyPatchResult(output="created")

    hand = Agent(
        name="Hand",
        model=MODEL,
        tools=[ShellTool(executor=execute), ApplyPatchTool(editor=Editor())],
    )
    ran = await Runner.run(hand, 'Run. [[call shell {"commands": ["ls"]}]][[then]][[say {result}]]')
    assert "out" in ran.final_output
    patched = await Runner.run(
        hand,
        (
            "Patch. [[call apply_patch "
            '{"type": "create_file", "path": "a", "diff": "+x"}]][[then]][[say {result}]]'
        ),
    )
    assert "created" in patched.final_output


async def computer() -> None:
    """The SDK carries the actions out and sends a screenshot."""

    class Screen(Computer):
        def __init__(self) -> None:
            self.done: list[tuple[object, ...]] = []

        def screenshot(self) -> str:
            return base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()

        def click(self, x: int, y: int, button: str) -> None:
            self.done.append((button, x, y))

        def keypress(self, keys: list[str]) -> None:
            self.done.append(("keys", *keys))

        def double_click(self, x: int, y: int) -> None:
            self.done.append(("double", x, y))

        def drag(self, path: list[tuple[int, int]]) -> None:
            self.done.append(("drag", *path))

        def move(self, x: int, y: int) -> None:
            self.done.append(("move", x, y))

        def scroll(self, x: int, y: int, scroll_x: int, scroll_y: int) -> None:
            self.done.append(("scroll", x, y, scroll_x, scroll_y))

        def type(self, text: str) -> None:
            self.done.append(("type", text))

        def wait(self) -> None:
            self.done.append(("wait",))

    screen = Screen()
    agent = Agent(name="Hand", model=MODEL, tools=[ComputerTool(computer=screen)])
    ran = await Runner.run(
        agent,
        'Copy. [[call computer {"actions": [{"type": "click", "x": "1", "y": 2},'
        ' {"type": "keypress", "keys": "ctrl+c"}]}]][[then]]'
        '[[call computer {"action": "left_click_drag", "start_coordinate": [1, 2], '
        '"coordinate": [3, 4]}]][[then]][[say Copied.]]',
    )
    assert ran.final_output == "Copied."
    assert screen.done == [
        ("left", 1, 2),
        ("keys", "ctrl", "c"),
        ("drag", (1, 2), (3, 4)),
    ], screen.done


async def chat() -> None:
    agent = Agent(
        name="Chat",
        model=OpenAIChatCompletionsModel(model=MODEL, openai_client=AsyncOpenAI()),
        tools=[get_weather],
    )
    assert (await Runner.run(agent, WEATHER)).final_output == "It is rain in Ulm."


async def socket() -> None:
    """All the turns of a run over one WebSocket."""
    async with responses_websocket_session() as memory:
        agent = Agent(name="Weatherman", model=MODEL, tools=[get_weather])
        first = memory.run_streamed(agent, WEATHER)
        async for _ in first.stream_events():
            pass
        assert first.final_output == "It is rain in Ulm."
        second = memory.run_streamed(
            agent, "Again. [[say {heard}]]", previous_response_id=first.last_response_id
        )
        async for _ in second.stream_events():
            pass
        assert second.final_output == "2"


SCENARIOS = (
    tools,
    stream,
    thinking,
    handoff,
    session,
    chain,
    structured,
    hosted_mcp,
    conversation,
    client_tools,
    computer,
    chat,
    socket,
)


async def main() -> None:
    for scenario in SCENARIOS:
        if sys.argv[1:] in ([], [scenario.__name__]):
            await scenario()
            print("ok", scenario.__name__, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
