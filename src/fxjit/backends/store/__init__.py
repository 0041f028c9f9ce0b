"""The disk cache: compiled artifacts, and stored compile results of captured graphs."""
