"""Chapter 21b's figures: each function takes data and returns a figure."""
