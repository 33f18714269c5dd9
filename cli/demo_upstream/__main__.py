"""`python -m cli.demo_upstream`: starts the demo upstream."""

import argparse

import uvicorn

from cli.demo_upstream.server import application
from models import logs


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m cli.demo_upstream",
        description="An OpenAI-compatible upstream without a model.",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (%(default)s)"
    )
    parser.add_argument(
        "--port", type=int, default=8001, help="the port to listen on (%(default)s)"
    )
    options = parser.parse_args()
    logs.configure("warning", process="demo-upstream")
    logs.capture_output()
    uvicorn.run(
        application(),
        host=options.host,
        port=options.port,
        log_config=None,
        access_log=False,
        backlog=2048,
        timeout_graceful_shutdown=1,
    )


if __name__ == "__main__":
    main()
