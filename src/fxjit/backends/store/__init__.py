"""What is kept on the disk from process to process: compiled artifacts, and what captured graphs were compiled to."""
