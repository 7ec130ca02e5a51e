"""What a node remembers of every sample's gradient: in memory, on a disk, by blocks."""
