"""What chapters build to study, to measure or to go further; a folder a topic. The core imports none at its head, and loads one by its name where it is asked for."""
