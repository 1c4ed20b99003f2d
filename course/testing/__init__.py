"""The tests as CI runs them: the notebooks in a clone that starts empty, and the tests beside them."""
