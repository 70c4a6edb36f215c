"""The texts of reports: `labels` of both kinds, sentences of the `terminal` views and of the HTML `page`."""
