"""Vector stores' files: read, cut into chunks, embedded.

Nothing is imported here: the process that reads a file is a new interpreter, and imports this
package too.
"""
