"""From decisions to a model: one file a form, and what the forms share."""
