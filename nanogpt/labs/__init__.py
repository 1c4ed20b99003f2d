"""What chapters build to study, to measure or to go further; a folder a topic. The core loads one by its name, where a key, a command or several processes ask for it."""
