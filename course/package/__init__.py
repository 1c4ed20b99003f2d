"""From notebooks' exported cells to the modules of nanogpt/."""
