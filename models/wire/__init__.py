"""The API's types: requests and their checks, items, events, the Response object. Pure."""
