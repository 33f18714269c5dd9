"""The clients that were tried: versions, programs, and how they are installed and run."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = Path(__file__).parents[2] / "clients" / "programs"
PROGRAM_TIMEOUT = 300.0
"""Most seconds for one client's program."""


@dataclass(frozen=True, slots=True)
class Client:
    """One client library. Its program prints `ok <scenario>` after each scenario and fails at the
    first that goes wrong.
    """

    name: str
    packages: tuple[str, ...]
    """Pinned, as npm or pip take them; the first is the client itself."""
    program: str
    scenarios: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def is_node(self) -> bool:
        return self.program.endswith(".mjs")


ZOD = "zod@4.6.7"
CLIENTS = (
    Client(
        "openai-node",
        ("openai@6.49.0", ZOD, "ws@8.23.0"),
        "openai_node.mjs",
        (
            "text",
            "stream",
            "tools",
            "chain",
            "structured",
            "background",
            "resume",
            "bookkeeping",
            "socket",
            "conversation",
            "chat",
            "errors",
        ),
    ),
    Client(
        "openai-agents-python",
        ("openai-agents==0.24.0", "openai==3.52.0"),
        "openai_agents_python.py",
        (
            *(
                "tools",
                "stream",
                "thinking",
                "handoff",
                "session",
                "chain",
                "structured",
                "hosted_mcp",
            ),
            *("conversation", "client_tools", "computer", "chat", "socket"),
        ),
    ),
    Client(
        "openai-agents-js",
        ("@openai/agents@0.20.0", ZOD, "ws@8.23.0"),
        "openai_agents_js.mjs",
        (
            "tools",
            "stream",
            "handoff",
            "session",
            "chain",
            "structured",
            "hosted_mcp",
            "conversation",
            "socket",
        ),
    ),
    Client(
        "codex",
        ("@openai/codex@0.169.0",),
        "codex_cli.mjs",
        ("text", "shell", "patch", "resume", "code_mode", "socket"),
    ),
    Client(
        "vercel-ai-sdk",
        ("ai@6.0.326", "@ai-sdk/openai@3.0.141", ZOD),
        "vercel_ai.mjs",
        (
            "text",
            "stream",
            "tools",
            "tools_unstored",
            "tools_streamed",
            "encrypted",
            "hosted_mcp",
            "chat",
            "structured",
            "chain",
        ),
    ),
    Client(
        "langchain-python",
        ("langchain-openai==1.7.3", "langchain==1.4.7", "openai==3.52.0"),
        "langchain_python.py",
        ("text", "stream", "tools", "agent", "structured", "chain", "encrypted", "chat"),
    ),
    Client(
        "langchain-js",
        ("@langchain/openai@1.5.8", "@langchain/core@1.2.13", ZOD),
        "langchain_js.mjs",
        ("text", "stream", "tools", "structured", "chat", "chain"),
    ),
    Client(
        "pydantic-ai",
        ("pydantic-ai-slim[openai]==2.68.0", "openai==3.52.0"),
        "pydantic_ai_agent.py",
        ("text", "stream", "tools", "structured", "chain", "chat"),
    ),
    Client(
        "llama-index",
        ("llama-index-llms-openai==0.8.3", "llama-index-core==0.14.25", "openai==2.54.0"),
        "llama_index_llm.py",
        ("text", "stream", "tools", "agent", "structured", "chain", "chat"),
    ),
    Client(
        "litellm",
        ("litellm==1.106.2", "openai==2.54.0", "mcp"),
        "litellm_client.py",
        ("text", "stream", "tools", "bridged", "chat"),
        {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},  # it would fetch a list of prices at every start
    ),
    Client(
        "llm",
        ("llm==0.36", "openai==3.52.0"),
        "llm_cli.py",
        ("text", "stream", "conversation", "structured", "tools", "chat"),
    ),
    Client(
        "anthropic-node",
        ("@anthropic-ai/sdk@1.14.0",),
        "anthropic_node.mjs",
        ("text", "stream", "tools", "thinking", "runner", "count", "errors"),
    ),
    Client(
        "claude-code",
        ("@anthropic-ai/claude-code@2.1.197",),
        "claude_code.mjs",
        ("text", "shell", "files", "resume"),
    ),
)


class CannotRun(Exception):
    """The reason why this client cannot be run here."""


async def install_client(client: Client, folder: Path, program: str | None = None) -> list[str]:
    """Installs the client below `folder`, unless it is there; returns the command of its program,
    or of another `program` of tests/clients/programs.

    Raises CannotRun.
    """
    home = folder / client.name
    stamp = home / "installed"
    wanted = "\n".join(client.packages)
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        for command in _node(client, home) if client.is_node else _python(client, home):
            await _run_command(command)
        stamp.write_text(wanted)
    # beside its libraries: Node looks for them from where the program lies
    source = PROGRAMS / (program or client.program)
    copy = shutil.copy(source, home / source.name)
    return ["node" if client.is_node else str(home / "bin" / "python"), str(copy)]


def _node(client: Client, home: Path) -> list[list[str]]:
    if shutil.which("npm") is None:
        raise CannotRun("there is no npm here")
    return [["npm", "install", "--prefix", str(home), "--no-audit", "--no-fund", *client.packages]]


def _python(client: Client, home: Path) -> list[list[str]]:
    if shutil.which("uv"):
        python = str(home / "bin" / "python")
        return [
            ["uv", "venv", "--quiet", "--clear", str(home)],
            ["uv", "pip", "install", "--quiet", "--python", python, *client.packages],
        ]
    return [
        [sys.executable, "-m", "venv", str(home)],
        [str(home / "bin" / "pip"), "install", "--quiet", *client.packages],
    ]


async def _run_command(command: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    printed, _ = await process.communicate()
    if process.returncode:
        raise CannotRun(f"{' '.join(command)} failed: {printed.decode(errors='replace')[-1500:]}")


async def run(command: list[str], environment: dict[str, str]) -> str:
    """Runs a program to its end; returns its output.

    Raises AssertionError with its errors if it fails.
    """
    async with asyncio.timeout(PROGRAM_TIMEOUT), _start(command, environment) as process:
        printed, complaint = await process.communicate()
        assert not process.returncode, complaint.decode(errors="replace")[-4000:]
        return printed.decode()


async def run_scenarios(
    client: Client, command: list[str], environment: dict[str, str]
) -> AsyncIterator[str]:
    """Runs a client's program; yields its scenarios as they pass.

    Raises AssertionError with its output.
    """
    async for line in run_lines(command, {**environment, **client.environment}):
        if line.startswith("ok "):
            yield line.split()[1]


async def run_lines(command: list[str], environment: dict[str, str]) -> AsyncIterator[str]:
    """Runs a program; yields the lines of its output as they come.

    Raises AssertionError with its errors if it fails.
    """
    async with asyncio.timeout(PROGRAM_TIMEOUT), _start(command, environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        complaint = asyncio.create_task(process.stderr.read())
        async for line in process.stdout:
            yield line.decode().rstrip("\n")
        failed = await process.wait()
        assert not failed, (await complaint).decode(errors="replace")[-4000:]


@asynccontextmanager
async def _start(
    command: list[str], environment: dict[str, str]
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Starts a process with the few variables of our environment that it needs."""
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}  # noqa: TID251  # of the child, not ours
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, env={**inherited, **environment}, stdout=pipe, stderr=pipe
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
