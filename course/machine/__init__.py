"""The machine: set-up, doctor, JupyterLab, data sets."""
