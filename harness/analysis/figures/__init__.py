"""The paper's measured figures and those that it lacks, each from a frame of the points that it plots."""
