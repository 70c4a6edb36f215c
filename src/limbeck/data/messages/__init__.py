"""What is said about the data of a run: files of rows, templates, prompts and answers."""
