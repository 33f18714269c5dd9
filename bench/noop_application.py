"""`python -m bench.noop_application PORT`: a FastAPI application whose routes do nothing."""

import sys

import uvicorn
from fastapi import FastAPI, Request, Response

application = FastAPI()


@application.get("/noop")
async def noop() -> Response:
    """Replies with an empty JSON object."""
    return Response(b"{}", media_type="application/json")


@application.post("/noop")
async def noop_post(request: Request) -> Response:
    """Reads the body, and replies with an empty JSON object."""
    await request.body()
    return Response(b"{}", media_type="application/json")


if __name__ == "__main__":
    uvicorn.run(
        application,
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )
