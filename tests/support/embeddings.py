"""The model of the fake upstream that makes embeddings: texts with the same words are near."""

import json

from cli.demo_upstream.replies import embeddings_of
from tests.support.fake_upstream import Exchange, Script, UpstreamRequest

EMBEDDING_MODEL = "embeddings"
REWRITE_MODEL = "rewriter"
"""The model that rewrites queries. Without a script it is unknown at the upstream."""


def embeddings(request: UpstreamRequest) -> Script:
    """Answers with the embeddings of the request's texts."""

    async def answer(exchange: Exchange) -> None:
        body = json.dumps(embeddings_of(json.dumps(request.body).encode())).encode()
        await exchange.answer(200, body, {"content-type": "application/json"})

    return [answer]
