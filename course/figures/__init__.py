"""Drawing that teaches nothing: axes, legends, layout. One file a chapter, one function a figure."""
