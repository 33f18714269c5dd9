"""An upstream without a model, for a first try: chat completions, streamed or whole.

`demo` repeats the message, `demo-slow` takes a minute, `demo-tools` calls the first function of the
request. Each reply names its origin. A request for JSON gets an example of the schema; a request
with a reasoning effort also gets a line of reasoning.
"""
