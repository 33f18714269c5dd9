"""The HTTP routes, one file a resource: parse the request, call the subject, present the result."""
