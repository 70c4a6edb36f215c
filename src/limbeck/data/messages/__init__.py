"""Messages about the data of a run: prompt files and their rows, chat templates, prompts and reference answers."""
