"""What the package of a clone is: complete, or growing from nothing, with blanks or without."""
