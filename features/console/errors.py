"""What goes wrong with a page of the console, as a page."""


class PageError(Exception):
    """A page that says what is wrong."""

    def __init__(self, status: int, title: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.title = title
        self.message = message
