"""The course as a book, and its pictures."""
