"""`python -m bench.noop_application PORT`: a FastAPI application whose only route does nothing."""

import sys

import uvicorn
from fastapi import FastAPI, Response

application = FastAPI()


@application.get("/noop")
async def noop() -> Response:
    """Replies with an empty JSON object."""
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
