"""The machinery around the notebooks: build, checkpoint, run, doctor. Students never edit it."""
