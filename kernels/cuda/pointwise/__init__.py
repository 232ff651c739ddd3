"""The 1x1 convolution by wgmma."""
