"""What is installed: blobs, manifests and FTW folders on disk. Read catalog.py first."""
