"""The packages that the production image contains: a bill of materials, and their licences."""
