"""What people see of results, in the terminal and as a page; imports without torch."""

__all__: list[str] = []
