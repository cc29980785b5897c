"""The float model over the samples: what each tensor's values look like."""
